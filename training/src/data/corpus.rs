//! Where texts lie: in a file, in the lines of a JSONL file, or in all such files of a folder.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::files::regular;

/// Ends of the names of files that are read in a folder; a file that is named by itself is a text unless its name ends in one of
/// the latter.
const TEXT: [&str; 3] = ["txt", "text", "md"];
const LINES: [&str; 2] = ["jsonl", "ndjson"];
/// How deep folders lie in each other: links may lead round in a circle.
const DEEPEST: usize = 32;
/// Bytes that are read at a time, and of the longest line.
const PIECE: usize = 1 << 20;
const LONGEST_LINE: usize = 1 << 30;
/// Names that a message lists.
const NAMES: usize = 5;

/// Files with texts, and what is a document in them.
#[derive(Debug, Clone, PartialEq)]
pub struct Corpus {
    path: PathBuf,
    files: Vec<PathBuf>,
    documents: Documents,
}

/// How documents are found in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// The field of a line of JSONL that is a document.
    pub field: String,
    /// What is put after each line's and each file's text, unless one text is all there is.
    pub end: End,
}

impl Default for Documents {
    fn default() -> Documents {
        Documents { field: "text".into(), end: End("\n".into()) }
    }
}

/// A text; written with `\n`, `\t` and `\\` for a new line, a tab and a backslash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End(String);

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<End, String> {
        let mut all = String::new();
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            all.push(match (next, if next == '\\' { rest.next() } else { None }) {
                ('\\', Some('n')) => '\n',
                ('\\', Some('t')) => '\t',
                ('\\', Some('\\')) => '\\',
                ('\\', _) => {
                    return Err(r"has a backslash before other than n, t and \; write \\ for one".into());
                }
                (other, _) => other,
            });
        }
        if all.is_empty() {
            return Err(r"is empty; write such as \n or <|endoftext|>".into());
        }
        Ok(End(all))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace('\\', r"\\").replace('\n', r"\n").replace('\t', r"\t"))
    }
}

impl Corpus {
    /// Of a file or a folder, in which files whose names begin with a dot are not looked at.
    ///
    /// # Errors
    /// [`Error::File`] for what is neither, and for a folder without texts or with other files among them.
    pub fn open(path: &Path, documents: &Documents) -> Result<Corpus> {
        let mut files = Vec::new();
        if path.is_dir() {
            let mut others = Vec::new();
            list(path, DEEPEST, &mut files, &mut others)?;
            let kinds = [&TEXT[..], &LINES].concat().join(", .");
            if !others.is_empty() {
                let told = names(&others);
                return Err(error(
                    path,
                    format!(
                        "{told}: the files of a folder end in .{kinds}; take the others away, or rename them"
                    ),
                ));
            }
            if files.is_empty() {
                return Err(error(
                    path,
                    format!("no file in it ends in .{kinds}; put texts there, or name one"),
                ));
            }
        } else {
            files.push(path.to_owned());
        }
        for file in &files {
            regular(file)
                .and_then(|()| File::open(file))
                .map_err(|e| error(file, format!("cannot be read: {e}")))?;
        }
        Ok(Corpus { path: path.to_owned(), files, documents: documents.clone() })
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    /// Whether it is one text, which is taken as it is.
    pub fn is_one_text(&self) -> bool {
        matches!(&self.files[..], [file] if !is_lines(file)) && !self.path.is_dir()
    }

    /// Bytes of all files, and a digest of those and of what makes documents of them.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read.
    pub fn contents(&self) -> Result<[u64; 2]> {
        let mut seen = self.unseen();
        for path in &self.files {
            let read = std::io::copy(&mut Seen::open(path, &mut seen)?, &mut std::io::sink());
            read.map_err(|e| error(path, format!("cannot be read: {e}")))?;
        }
        Ok(seen)
    }

    /// Hands out the documents one after the other, each with its end and its file; returns what [`Corpus::contents`] does.
    ///
    /// # Errors
    /// Those of `each`; [`Error::File`] for a file that cannot be read, or a line that is no JSON object with a text in the field.
    pub fn read(&self, each: &mut dyn FnMut(&Path, Vec<u8>) -> Result<()>) -> Result<[u64; 2]> {
        let mut seen = self.unseen();
        let one = self.is_one_text();
        for path in &self.files {
            let mut file = Seen::open(path, &mut seen)?;
            if is_lines(path) {
                self.lines(path, BufReader::with_capacity(PIECE, file), each)?;
                continue;
            }
            let mut text = Vec::new();
            file.read_to_end(&mut text).map_err(|e| error(path, format!("cannot be read: {e}")))?;
            if !one {
                text.extend(self.documents.end.0.bytes());
            }
            each(path, text)?;
        }
        Ok(seen)
    }

    /// Before any file is read.
    fn unseen(&self) -> [u64; 2] {
        let Documents { field, end } = &self.documents;
        match self.is_one_text() {
            true => [0, 0],
            false => [0, digest(digest(1, field.as_bytes()), end.0.as_bytes())],
        }
    }

    fn lines(
        &self,
        path: &Path,
        mut from: impl BufRead,
        each: &mut dyn FnMut(&Path, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let Documents { field, end } = &self.documents;
        for number in 1u64.. {
            let wrong = |problem: String| error(path, format!("line {number}: {problem}"));
            let mut line = Vec::new();
            let read = from.by_ref().take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line);
            match read.map_err(|e| wrong(format!("cannot be read: {e}")))? {
                0 => break,
                len if len > LONGEST_LINE => {
                    return Err(wrong(format!("it has more than {LONGEST_LINE} bytes; is it JSONL?")));
                }
                _ if line.trim_ascii().is_empty() => continue,
                _ => {}
            }
            let mut object: Map<String, Value> = serde_json::from_slice(&line).map_err(|e| {
                wrong(format!("no JSON object: {e}; a line is such as {{\"{field}\": \"...\"}}"))
            })?;
            match object.remove(field) {
                Some(Value::String(text)) => each(path, [text.as_bytes(), end.0.as_bytes()].concat())?,
                Some(other) => {
                    return Err(wrong(format!(
                        "{field} is {}, no text; name the text's field with --data-field",
                        kind(&other)
                    )));
                }
                None => {
                    let has: Vec<String> = object.into_iter().map(|(name, _)| name).collect();
                    return Err(wrong(format!(
                        "there is no {field}, and {}; name the text's field with --data-field",
                        names(&has)
                    )));
                }
            }
        }
        Ok(())
    }
}

/// A file that is read, with what has been: its digest is made of pieces of one length however much is read at a time.
struct Seen<'a> {
    file: File,
    seen: &'a mut [u64; 2],
    piece: Vec<u8>,
    /// Its end was seen, which some readers look for again.
    ended: bool,
}

impl<'a> Seen<'a> {
    fn open(path: &Path, seen: &'a mut [u64; 2]) -> Result<Seen<'a>> {
        let file = File::open(path).map_err(|e| error(path, format!("cannot be read: {e}")))?;
        Ok(Seen { file, seen, piece: Vec::new(), ended: false })
    }
}

impl Read for Seen<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.file.read(out)?;
        let [bytes, contents] = &mut *self.seen;
        *bytes += len as u64;
        self.piece.extend(&out[..len]);
        let ends = len == 0 && !out.is_empty() && !self.ended;
        self.ended |= ends;
        let whole = if ends { self.piece.len() } else { self.piece.len() / PIECE * PIECE };
        *contents = self.piece.drain(..whole).as_slice().chunks(PIECE).fold(*contents, digest);
        if ends {
            // Where a file ends.
            *contents = digest(*contents, &[]);
        }
        Ok(len)
    }
}

/// The files of a folder, in the order of their names, and the names of others, of which a few are enough.
fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>, others: &mut Vec<String>) -> Result<()> {
    if depth == 0 {
        return Err(error(
            folder,
            format!("folders lie {DEEPEST} deep in each other; does a link lead round in a circle?"),
        ));
    }
    let unreadable = |e| error(folder, format!("cannot be read: {e}"));
    let entries =
        std::fs::read_dir(folder).map_err(unreadable)?.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        if others.len() > NAMES {
            break;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        match path.is_dir() {
            true => list(&path, depth - 1, files, others)?,
            false if ends_in(&path, &TEXT) || is_lines(&path) => files.push(path),
            false => others.push(name),
        }
    }
    Ok(())
}

fn is_lines(path: &Path) -> bool {
    ends_in(path, &LINES)
}

fn ends_in(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// `a, b are there`.
fn names(all: &[String]) -> String {
    match all {
        [] => "it is empty".into(),
        [one] => format!("{one} is there"),
        all if all.len() > NAMES => format!("{} and others are there", all[..NAMES].join(", ")),
        all => format!("{} are there", all.join(", ")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn error(path: &Path, problem: String) -> Error {
    Error::File { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(path: &Path) -> Result<Corpus> {
        Corpus::open(path, &Documents { field: "text".into(), end: End("|".into()) })
    }

    fn all(path: &Path) -> Result<String> {
        let (mut texts, corpus) = (String::new(), corpus(path)?);
        let seen = corpus.read(&mut |_, text| {
            texts += std::str::from_utf8(&text).unwrap();
            Ok(())
        })?;
        assert_eq!(seen, corpus.contents()?);
        assert_eq!(seen[0], corpus.bytes());
        Ok(texts)
    }

    #[test]
    fn one_text_is_taken_as_it_is_and_several_have_ends() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("deep")).unwrap();
        for (name, text) in [
            ("b.txt", "second"),
            ("a.jsonl", "{\"text\": \"zero\\u0021\"}\n\n  {\"id\": 1, \"text\": \"first\"}"),
            ("deep/c.md", "third"),
            (".hidden", "no"),
            ("book", "a text"),
        ] {
            std::fs::write(at(name), text).unwrap();
        }
        assert_eq!(all(&at("b.txt")).unwrap(), "second");
        assert_eq!(all(&at("book")).unwrap(), "a text");
        assert_eq!(all(&at("a.jsonl")).unwrap(), "zero!|first|");
        let error = all(folder.path()).unwrap_err().to_string();
        assert!(error.contains("book is there: the files of a folder end in .txt"), "{error}");
        std::fs::remove_file(at("book")).unwrap();
        assert_eq!(all(folder.path()).unwrap(), "zero!|first|second|third|");
    }

    #[test]
    fn the_digest_is_that_of_files_and_of_what_makes_documents_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let long = "x".repeat(3 * PIECE + 5);
        std::fs::write(at("a.txt"), &long).unwrap();
        assert_eq!(all(&at("a.txt")).unwrap(), long);
        let before = corpus(folder.path()).unwrap().contents().unwrap();
        let documents = |field: &str, end: &str| Documents { field: field.into(), end: End(end.into()) };
        let other = |documents| Corpus::open(folder.path(), &documents).unwrap().contents().unwrap();
        assert_eq!(other(documents("text", "|")), before);
        assert_ne!(other(documents("text", "")), before);
        assert_ne!(other(documents("content", "|")), before);
        // The same bytes in two files.
        std::fs::write(at("a.txt"), &long[..5]).unwrap();
        std::fs::write(at("b.txt"), &long[5..]).unwrap();
        let after = corpus(folder.path()).unwrap().contents().unwrap();
        assert!(after[0] == before[0] && after[1] != before[1]);
    }

    #[test]
    fn lines_and_folders_without_texts_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            all(&path).unwrap_err().to_string()
        };
        for (text, words) in [
            ("{\"text\": \"a\"}\nb", "a.jsonl: line 2: no JSON object"),
            ("[1]", "line 1: no JSON object"),
            ("{\"text\": 1}", "text is a number, no text; name the text's field with --data-field"),
            ("{\"content\": \"a\"}", "there is no text, and content is there; name the text's field"),
            ("{\"text\": \"\\ud800\"}", "line 1: no JSON object"),
        ] {
            let error = said(text);
            assert!(error.contains(words), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = all(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no file in it ends in .txt, .text, .md, .jsonl, .ndjson"), "{error}");
        std::os::unix::fs::symlink(".", folder.path().join("round")).unwrap();
        let error = all(folder.path()).unwrap_err().to_string();
        assert!(error.contains("round in a circle"), "{error}");
    }

    #[test]
    fn ends_are_written_as_they_are_read() {
        for (text, means) in [(r"\n", "\n"), (r"a\t\\n", "a\t\\n"), ("<|end|>", "<|end|>")] {
            let end: End = text.parse().unwrap();
            assert_eq!((end.0.as_str(), end.to_string().as_str()), (means, text));
        }
        assert!(r"\x".parse::<End>().unwrap_err().contains("backslash"));
        assert!("".parse::<End>().unwrap_err().contains("is empty"));
    }
}
