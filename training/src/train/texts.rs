//! Texts as tokens, made of them once on each host.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nd_comm::prelude::Communicator;

use super::Config;
use super::agree::{Thing, all_well, same_files};
use crate::data::{Tokenizer, Tokens, text};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::files::regular;

/// Bytes of the text that is made where none is given, and of the one to measure on.
const MADE: usize = 200_000;
const MADE_FOR_EVAL: usize = 20_000;
/// The flags for files.
const DATA: &str = "--data";
const EVAL_DATA: &str = "--eval-data";
const TOKENIZER: &str = "--tokenizer";
/// The slowest that tokens are made of a text, bytes/s: others of the host wait so long.
const SLOWEST: u64 = 50_000;

/// What a run reads besides its model.
pub(super) struct Texts {
    pub training: Tokens,
    pub eval: Option<Tokens>,
    /// Bytes and digests of the files, see [`files`].
    seen: Vec<[u64; 2]>,
}

/// Where a text comes from.
enum Source<'a> {
    Made(u64, usize),
    File(&'a Path, &'static str),
}

fn training(config: &Config) -> Source<'_> {
    config.data.as_deref().map_or(Source::Made(1, MADE), |path| Source::File(path, DATA))
}

fn eval(config: &Config) -> Option<Source<'_>> {
    let path = config.eval_data.as_deref()?;
    Some(if path == Path::new("made") {
        Source::Made(2, MADE_FOR_EVAL)
    } else {
        Source::File(path, EVAL_DATA)
    })
}

/// The files that are read, and what they are.
fn files(config: &Config) -> Vec<(&Path, &'static str)> {
    let texts = [Some(training(config)), eval(config)].into_iter().flatten();
    let mut all: Vec<_> = texts
        .filter_map(|source| match source {
            Source::File(path, flag) => Some((path, flag)),
            Source::Made(..) => None,
        })
        .collect();
    if let Tokenizer::File(path) = &config.tokenizer {
        all.push((path, TOKENIZER));
    }
    all
}

impl Texts {
    /// The same on all ranks, which all call this. Bytes are read by every rank; with a tokenizer, which takes its time and several
    /// times a text's memory, the first rank of a host tells the others its tokens, unless their paths lead to other files.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::File`] or [`Error::Config`] for a file that cannot be read, tokens that the model does not
    /// know, or files that are not the same on all ranks.
    pub fn read(comm: &Communicator, config: &Config, vocabulary: usize) -> Result<Texts> {
        Texts::read_by(comm, config, &|| Texts::own(config, vocabulary))
    }

    /// As [`Texts::read`]; `own` is what a rank reads that reads by itself.
    fn read_by(comm: &Communicator, config: &Config, own: &dyn Fn() -> Result<Texts>) -> Result<Texts> {
        let texts = match config.tokenizer {
            Tokenizer::Bytes => all_well(comm, own()),
            Tokenizer::File(_) => Texts::of_host(comm, config, own),
        }?;
        let file = |((path, flag), &[bytes, contents]): ((&Path, &str), &[u64; 2])| {
            Thing::file(flag, path, bytes, contents)
        };
        let seen: Vec<Thing> = files(config).into_iter().zip(&texts.seen).map(file).collect();
        same_files(comm, &seen)?;
        Ok(texts)
    }

    /// How long the training text is, where that is known without reading it.
    pub fn tokens_known(config: &Config) -> Option<usize> {
        match (training(config), &config.tokenizer) {
            (Source::Made(_, len), Tokenizer::Bytes) => Some(len),
            (Source::File(path, _), Tokenizer::Bytes) => path.metadata().ok().map(|file| file.len() as usize),
            _ => None,
        }
    }

    /// Whether the files are there, before anything is read, and have a length.
    ///
    /// # Errors
    /// [`Error::File`] for the first that is not or has none.
    pub fn are_there(config: &Config) -> Result<()> {
        let there = |(path, flag)| {
            let opened = regular(path).and_then(|()| std::fs::File::open(path));
            opened.map(drop).map_err(|e| unreadable(path, flag, &e))
        };
        files(config).into_iter().try_for_each(there)
    }

    /// Read by this rank alone.
    fn own(config: &Config, vocabulary: usize) -> Result<Texts> {
        let mut seen = Vec::new();
        let mut read = |source: Source<'_>| {
            let (tokens, name) = match source {
                Source::Made(seed, len) => {
                    let text = text::generate(seed, len);
                    (config.tokenizer.encode(text.into_bytes())?, "the text".to_owned())
                }
                Source::File(path, flag) => {
                    let text = std::fs::read(path).map_err(|e| unreadable(path, flag, &e))?;
                    seen.push([text.len() as u64, digest(0, &text)]);
                    let tokens =
                        config.tokenizer.encode_file(path, text).map_err(|e| with_flag(e, path, flag))?;
                    (tokens, path.display().to_string())
                }
            };
            if let Some((at, token)) = tokens.beyond(vocabulary) {
                return Err(Error::Config(format!(
                    "{name}: token {at} is {token}, and the model has vocab_size={vocabulary}; use the tokenizer that belongs \
                     to the model (--tokenizer)"
                )));
            }
            Ok(tokens)
        };
        let training = read(training(config))?;
        let eval = eval(config).map(&mut read).transpose()?;
        if let Tokenizer::File(path) = &config.tokenizer {
            let file = std::fs::read(path).map_err(|e| unreadable(path, TOKENIZER, &e))?;
            seen.push([file.len() as u64, digest(0, &file)]);
        }
        Ok(Texts { training, eval, seen })
    }

    /// Read by the first rank of each host.
    fn of_host(comm: &Communicator, config: &Config, own: &dyn Fn() -> Result<Texts>) -> Result<Texts> {
        let first = comm.host_ranks().first().copied().unwrap_or_default();
        let bytes: u64 =
            files(config).iter().filter_map(|(path, _)| path.metadata().ok()).map(|file| file.len()).sum();
        let patient = comm.timeout() + Duration::from_secs(bytes / SLOWEST);
        let patient = comm.with_timeout(patient);
        let host = patient.split(first.into(), comm.rank() as i64)?;
        let texts = if one_for_all(&host, config)? {
            let read = (host.rank() == 0).then(own);
            Texts::tell(&host, config, read)
        } else {
            own()
        };
        // The group is there until all have what they need of it.
        all_well(&patient, texts)
    }

    /// What rank 0 of the group has, or that it has failed.
    fn tell(host: &Communicator, config: &Config, own: Option<Result<Texts>>) -> Result<Texts> {
        let mut header = vec![[0u64; 2]; 3 + files(config).len()];
        if let Some(Ok(texts)) = &own {
            header[0] = [1, 0];
            header[1] = shape(Some(&texts.training));
            header[2] = shape(texts.eval.as_ref());
            header[3..].copy_from_slice(&texts.seen);
        }
        host.broadcast(header.as_flattened_mut(), 0)?;
        let [[well, _], training, eval, seen @ ..] = &header[..] else { unreachable!("three and the files") };
        let mut texts = match own {
            Some(own) => own?,
            None if *well == 1 => Texts { training: room(*training), eval: None, seen: seen.to_vec() },
            None => return Err(Error::Config("the first rank of this host could not read its text".into())),
        };
        pass(host, &mut texts.training)?;
        if eval[0] > 0 {
            pass(host, texts.eval.get_or_insert_with(|| room(*eval)))?;
        }
        Ok(texts)
    }
}

/// Bytes of a token, and how many there are.
fn shape(tokens: Option<&Tokens>) -> [u64; 2] {
    let width = match tokens {
        None => 0,
        Some(Tokens::U8(_)) => 1,
        Some(Tokens::U16(_)) => 2,
        Some(Tokens::U32(_)) => 4,
    };
    [width, tokens.map_or(0, Tokens::len) as u64]
}

/// For so many tokens of so many bytes.
fn room([width, len]: [u64; 2]) -> Tokens {
    let len = len as usize;
    match width {
        1 => Tokens::U8(vec![0; len]),
        2 => Tokens::U16(vec![0; len]),
        _ => Tokens::U32(vec![0; len]),
    }
}

/// What rank 0 has, at all.
fn pass(host: &Communicator, tokens: &mut Tokens) -> Result<()> {
    match tokens {
        Tokens::U8(tokens) => host.broadcast(tokens, 0)?,
        Tokens::U16(tokens) => host.broadcast(tokens, 0)?,
        Tokens::U32(tokens) => host.broadcast(tokens, 0)?,
    }
    Ok(())
}

/// Whether the paths of all ranks of a host lead to the same files, so that one of them can read for all.
fn one_for_all(host: &Communicator, config: &Config) -> Result<bool> {
    let identity = |path: &Path| match path.metadata() {
        Ok(file) => [file.dev(), file.ino(), file.len(), file.mtime_nsec() as u64 ^ file.mtime() as u64],
        // Whoever cannot reach it says so by itself.
        Err(_) => [u64::MAX, host.rank() as u64, 0, 0],
    };
    let of = |source: Option<Source<'_>>| match source {
        None => [0; 4],
        Some(Source::Made(seed, _)) => [0, seed, 0, 0],
        Some(Source::File(path, _)) => identity(path),
    };
    let tokenizer = match &config.tokenizer {
        Tokenizer::Bytes => [0; 4],
        Tokenizer::File(path) => identity(path),
    };
    let own = [of(Some(training(config))), of(eval(config)), tokenizer];
    let mut all = vec![[[0; 4]; 3]; host.world_size()];
    host.all_gather(own.as_flattened(), all.as_flattened_mut().as_flattened_mut())?;
    Ok(all.iter().all(|other| *other == all[0]))
}

fn unreadable(path: &Path, flag: &str, error: &std::io::Error) -> Error {
    Error::File { path: path.to_owned(), problem: format!("cannot be read: {error}; check {flag}") }
}

/// An error about a text, with the flag that named it.
fn with_flag(error: Error, text: &Path, flag: &str) -> Error {
    match error {
        Error::File { path, problem } if path == text => {
            Error::File { path, problem: format!("{problem}; check {flag}") }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nd_comm::choose::Chooser;
    use nd_tests::worlds::{Kind, each, world};

    use super::*;

    /// Words of a tokenizer that knows `words` of them.
    fn folder(words: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let vocabulary: Vec<String> = (0..words).map(|i| format!("\"w{i}\": {i}")).collect();
        let json = format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": null,
            "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "w0"}}}}"#,
            vocabulary.join(", ")
        );
        std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        let text: Vec<String> = (0..words).rev().map(|i| format!("w{i}")).collect();
        std::fs::write(folder.path().join("text"), text.join(" ")).unwrap();
        folder
    }

    fn config(folder: &Path) -> Config {
        Config {
            data: Some(folder.join("text")),
            eval_data: Some("made".into()),
            tokenizer: Tokenizer::File(folder.join("tokenizer.json")),
            ..Config::default()
        }
    }

    /// What each rank has, and how many have read by themselves; ranks sit on these hosts and read from these folders.
    fn read(hosts: &[usize], folders: &[&Path], vocabulary: usize) -> (Vec<Result<Texts>>, usize) {
        let count = AtomicUsize::new(0);
        let ranks = world(&Kind::Hosts(hosts.to_vec()), hosts.len(), &Chooser::default());
        let texts = each(&ranks, |comm| {
            let config = config(folders[comm.rank()]);
            let own = || {
                count.fetch_add(1, Ordering::Relaxed);
                Texts::own(&config, vocabulary)
            };
            Texts::read_by(comm, &config, &own)
        });
        (texts, count.into_inner())
    }

    #[test]
    fn one_rank_of_each_host_makes_tokens_for_all() {
        for (words, width) in [(200, 1), (300, 2), (70_000, 4)] {
            let folder = folder(words);
            let (texts, read) = read(&[0, 1, 0, 1, 1], &[folder.path(); 5], words);
            assert_eq!(read, 2);
            for texts in texts {
                let texts = texts.unwrap();
                assert_eq!(shape(Some(&texts.training)), [width, words as u64]);
                assert!((0..words).all(|i| texts.training.get(i) == Some((words - 1 - i) as u32)));
                assert!(texts.eval.is_some_and(|eval| eval.len() > 100));
            }
        }
    }

    #[test]
    fn ranks_whose_paths_lead_elsewhere_read_by_themselves() {
        let [a, b, c] = [200, 200, 201].map(folder);
        let (texts, count) = read(&[0, 0], &[a.path(), b.path()], 200);
        assert!(count == 2 && texts.iter().all(Result::is_ok), "equal files may lie in two places");
        let (texts, _) = read(&[0, 0, 1], &[a.path(), a.path(), c.path()], 201);
        for error in texts {
            let error = error.err().expect("another text").to_string();
            assert!(error.starts_with("rank 2 (") && error.contains("has --data "), "{error}");
            assert!(error.contains("ranks 0 and 1 (") && error.contains("copy one of them"), "{error}");
        }
    }

    #[test]
    fn what_the_first_rank_cannot_read_all_are_told() {
        let folder = folder(200);
        let (texts, count) = read(&[0, 0, 1, 1], &[folder.path(); 4], 100);
        assert_eq!(count, 2);
        for error in texts {
            let error = error.err().expect("unknown words").to_string();
            assert!(error.contains("token 0 is 199") && error.contains("vocab_size=100"), "{error}");
        }
        std::fs::remove_file(folder.path().join("text")).unwrap();
        for error in read(&[0, 0], &[folder.path(); 2], 200).0 {
            let error = error.err().expect("no text").to_string();
            assert!(error.contains("cannot be read") && error.contains("check --data"), "{error}");
        }
    }
}
