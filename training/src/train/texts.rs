//! Texts as tokens, made of them once.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nd_comm::prelude::Communicator;

use super::Config;
use crate::agree::{Thing, all_well, same_files};
use crate::checkpoint::manifest::{Text, hexadecimal};
use crate::data::{Cache, Corpus, Encoder, Key, Tokenizer, Tokens, text};
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
    /// What the text to train on is, and what has made tokens of it.
    pub seen: Vec<Text>,
}

/// Where texts, and what makes tokens of them, come from.
pub(super) struct Sources {
    training: Source,
    eval: Option<Source>,
    tokenizer: Tokenizer,
    /// Where tokens are kept.
    cache: Option<PathBuf>,
}

enum Source {
    Made(u64, usize),
    Files(Corpus, &'static str),
}

/// What a text is and, after it, what makes tokens of it: bytes and a digest each.
type Seen = [[u64; 2]; 2];

impl Sources {
    /// Looks whether everything is there, before anything is read.
    ///
    /// # Errors
    /// [`Error::File`] for the first that is not or has no length.
    pub fn new(config: &Config) -> Result<Sources> {
        let files = |path: &Path, flag| {
            let corpus = Corpus::open(path, &config.documents).map_err(|e| with_flag(e, flag))?;
            Ok::<_, Error>(Source::Files(corpus, flag))
        };
        let training = config.data.as_deref().map_or(Ok(Source::Made(1, MADE)), |path| files(path, DATA))?;
        let eval = config.eval_data.as_deref().map(|path| match path == Path::new("made") {
            true => Ok(Source::Made(2, MADE_FOR_EVAL)),
            false => files(path, EVAL_DATA),
        });
        let (eval, tokenizer) = (eval.transpose()?, config.tokenizer());
        if let Tokenizer::File(path) = &tokenizer {
            let opened = regular(path).and_then(|()| File::open(path));
            opened.map_err(|e| Error::File {
                path: path.clone(),
                problem: format!("cannot be read: {e}; check {TOKENIZER}"),
            })?;
        }
        Ok(Sources { training, eval, tokenizer, cache: config.data_cache() })
    }

    /// How long the training text is, where that is known without reading it.
    pub fn tokens_known(&self) -> Option<usize> {
        match (&self.training, &self.tokenizer) {
            (Source::Made(_, len), Tokenizer::Bytes) => Some(*len),
            (Source::Files(corpus, _), Tokenizer::Bytes) if corpus.is_one_text() => {
                Some(corpus.bytes() as usize)
            }
            _ => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(&self.training).chain(&self.eval)
    }

    fn cache(&self) -> Result<Cache> {
        match &self.cache {
            Some(folder) => Cache::open(folder),
            None => Err(Error::Config(
                "there is no home folder to keep tokens in; name a folder with --data-cache".into(),
            )),
        }
    }
}

impl Source {
    fn bytes(&self) -> u64 {
        match self {
            Source::Made(_, len) => *len as u64,
            Source::Files(corpus, _) => corpus.bytes(),
        }
    }

    /// Under what the tokens lie in the cache.
    fn key(&self, [text, tokenizer]: Seen) -> Key {
        let words = [text[0], matches!(self, Source::Made(..)).into(), tokenizer[0], tokenizer[1]];
        let maker = words.iter().fold(0, |maker, word| digest(maker, &word.to_le_bytes()));
        [text[1], maker]
    }
}

impl Texts {
    /// The same on all ranks, which all call this. Bytes are read by every rank; with a tokenizer, which takes its time and several
    /// times a text's memory, the first rank of a host makes the tokens and the others find them in the cache, unless their paths
    /// lead to other files.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::File`] or [`Error::Config`] for a file that cannot be read, tokens that the model does not
    /// know, or files that are not the same on all ranks.
    pub fn read(comm: &Communicator, sources: &Sources, vocabulary: usize) -> Result<Texts> {
        Texts::read_by(comm, sources, vocabulary, &|| make(sources))
    }

    /// As [`Texts::read`]; `make` puts the tokens into the cache.
    fn read_by(
        comm: &Communicator,
        sources: &Sources,
        vocabulary: usize,
        make: &dyn Fn() -> Result<Vec<Seen>>,
    ) -> Result<Texts> {
        let read = match sources.tokenizer {
            Tokenizer::Bytes => bytes(sources),
            Tokenizer::File(_) => of_host(comm, sources, make),
        };
        let read = read.and_then(|(all, seen)| Ok((checked(sources, all, vocabulary)?, seen)));
        let (all, seen) = all_well(comm, read)?;
        let mut things = Vec::new();
        for (source, [[bytes, contents], _]) in sources.all().zip(&seen) {
            if let Source::Files(corpus, flag) = source {
                things.push(Thing::file(*flag, corpus.path(), *bytes, *contents));
            }
        }
        if let (Tokenizer::File(path), Some([_, [bytes, contents]])) = (&sources.tokenizer, seen.first()) {
            things.push(Thing::file(TOKENIZER, path, *bytes, *contents));
        }
        same_files(comm, &things)?;
        let mut all = all.into_iter();
        let training = all.next().unwrap_or_else(|| Vec::new().into());
        let text = |name: &str, [bytes, digest]: [u64; 2]| Text {
            name: name.into(),
            bytes,
            digest: hexadecimal(digest),
        };
        let tokenizer =
            |seen: &Seen| matches!(sources.tokenizer, Tokenizer::File(_)).then(|| text(TOKENIZER, seen[1]));
        let training_text = |seen: &Seen| match sources.training {
            Source::Made(seed, len) => text("the text that the program makes", [len as u64, seed]),
            Source::Files(..) => text(DATA, seen[0]),
        };
        let seen = seen
            .first()
            .map_or(Vec::new(), |seen| [training_text(seen)].into_iter().chain(tokenizer(seen)).collect());
        Ok(Texts { training, eval: all.next(), seen })
    }
}

/// Refuses too few tokens, and those that the model does not know.
fn checked(sources: &Sources, all: Vec<Tokens>, vocabulary: usize) -> Result<Vec<Tokens>> {
    for (source, tokens) in sources.all().zip(&all) {
        if let Some((at, token)) = tokens.beyond(vocabulary) {
            let name = match source {
                Source::Made(..) => "the text".to_owned(),
                Source::Files(corpus, _) => corpus.path().display().to_string(),
            };
            return Err(Error::Config(format!(
                "{name}: token {at} is {token}, and the model has vocab_size={vocabulary}; use the tokenizer that belongs \
                 to the model (--tokenizer)"
            )));
        }
        if let (Source::Files(corpus, flag), len @ (0 | 1)) = (source, tokens.len()) {
            let bytes = corpus.bytes();
            let problem = format!(
                "{bytes} byte{} made {len} token{}, and a sequence needs at least 2; give a longer text; check {flag}",
                if bytes == 1 { "" } else { "s" },
                if len == 1 { "" } else { "s" }
            );
            return Err(Error::File { path: corpus.path().to_owned(), problem });
        }
    }
    Ok(all)
}

/// Texts whose bytes are their tokens.
fn bytes(sources: &Sources) -> Result<(Vec<Tokens>, Vec<Seen>)> {
    let read = |source: &Source| {
        let mut all = Vec::new();
        let seen = match source {
            Source::Made(seed, len) => {
                all = text::generate(*seed, *len).into_bytes();
                [0, 0]
            }
            Source::Files(corpus, flag) => {
                let mut add = |_: &Path, text: Vec<u8>| {
                    if all.is_empty() {
                        all = text
                    } else {
                        all.extend(text)
                    }
                    Ok(())
                };
                corpus.read(&mut add).map_err(|e| with_flag(e, flag))?
            }
        };
        Ok((Tokens::U8(all), [seen, [0, 0]]))
    };
    sources.all().map(read).collect()
}

/// Puts the tokens of all texts into the cache, but for those that are there.
fn make(sources: &Sources) -> Result<Vec<Seen>> {
    let Some(tokenizer) = sources.tokenizer.seen()? else { return Ok(Vec::new()) };
    let cache = sources.cache()?;
    let mut encoder = None;
    let one = |source: &Source| {
        let text = match source {
            Source::Made(seed, len) => [*len as u64, *seed],
            Source::Files(corpus, flag) => corpus.contents().map_err(|e| with_flag(e, flag))?,
        };
        let seen = [text, tokenizer];
        if cache.get(source.key(seen))?.is_none() {
            if encoder.is_none() {
                encoder = sources.tokenizer.encoder()?;
            }
            encoder.as_ref().map_or(Ok(()), |encoder| encode(source, seen, encoder, &cache))?;
        }
        Ok(seen)
    };
    sources.all().map(one).collect()
}

fn encode(source: &Source, seen: Seen, encoder: &Encoder, cache: &Cache) -> Result<()> {
    cache.make(source.key(seen), encoder.vocabulary(), |writer| {
        let (corpus, flag) = match source {
            Source::Made(seed, len) => {
                return writer.add(&encoder.encode(text::generate(*seed, *len).as_bytes())?);
            }
            Source::Files(corpus, flag) => (corpus, flag),
        };
        let mut add = |file: &Path, text: Vec<u8>| {
            let tokens = encoder.encode(&text).map_err(|e| match e {
                Error::Config(problem) => Error::File { path: file.to_owned(), problem },
                e => e,
            })?;
            writer.add(&tokens)
        };
        match corpus.read(&mut add).map_err(|e| with_flag(e, flag))? {
            text if text == seen[0] => Ok(()),
            _ => Err(Error::File {
                path: corpus.path().to_owned(),
                problem: format!("it was changed while it was read; start again when it stays; check {flag}"),
            }),
        }
    })
}

/// The tokens of all texts, which the first rank of each host makes.
fn of_host(
    comm: &Communicator,
    sources: &Sources,
    make: &dyn Fn() -> Result<Vec<Seen>>,
) -> Result<(Vec<Tokens>, Vec<Seen>)> {
    let first = comm.host_ranks().first().copied().unwrap_or_default();
    let bytes: u64 = sources.all().map(Source::bytes).sum();
    let patient = comm.timeout() + Duration::from_secs(bytes / SLOWEST);
    let patient = comm.with_timeout(patient);
    let host = patient.split(first.into(), comm.rank() as i64)?;
    let read = || {
        // The folder is there before ranks compare where theirs is.
        let cache = sources.cache();
        let seen = match one_for_all(&host, sources)? {
            true => tell(&host, sources, (host.rank() == 0).then(make))?,
            false => make()?,
        };
        let cache = cache?;
        let find = |(source, seen): (&Source, &Seen)| {
            cache.get(source.key(*seen))?.ok_or_else(|| {
                Error::Config(format!(
                    "{}: tokens that were put there a moment ago are gone; name a folder with --data-cache that all ranks of this \
                     host see, and that nothing tidies up",
                    sources.cache.as_deref().unwrap_or(Path::new("")).display()
                ))
            })
        };
        let tokens = sources.all().zip(&seen).map(find).collect::<Result<Vec<_>>>()?;
        Ok((tokens, seen))
    };
    // The group is there until all have what they need of it.
    all_well(&patient, read())
}

/// What rank 0 of the group has seen, or that it has failed.
fn tell(host: &Communicator, sources: &Sources, own: Option<Result<Vec<Seen>>>) -> Result<Vec<Seen>> {
    let mut told: Vec<Seen> = vec![[[0; 2]; 2]; 1 + sources.all().count()];
    if let Some(Ok(seen)) = &own {
        told[0] = [[1; 2]; 2];
        told[1..].copy_from_slice(seen);
    }
    host.broadcast(told.as_flattened_mut().as_flattened_mut(), 0)?;
    match own {
        Some(own) => own,
        None if told[0][0][0] == 1 => Ok(told[1..].to_vec()),
        None => Err(Error::Config("the first rank of this host could not read its text".into())),
    }
}

/// Whether the paths of all ranks of a host lead to the same files, so that one of them can read for all.
fn one_for_all(host: &Communicator, sources: &Sources) -> Result<bool> {
    let identity = |path: &Path| match path.metadata() {
        Ok(file) if file.is_dir() => [file.dev(), file.ino(), 0, 0],
        Ok(file) => [file.dev(), file.ino(), file.len(), file.mtime_nsec() as u64 ^ file.mtime() as u64],
        // Whoever cannot reach it says so by itself.
        Err(_) => [u64::MAX, host.rank() as u64, 0, 0],
    };
    let of = |source: Option<&Source>| match source {
        None => [0; 4],
        Some(Source::Made(seed, _)) => [0, *seed, 0, 0],
        Some(Source::Files(corpus, _)) => identity(corpus.path()),
    };
    let tokenizer = match &sources.tokenizer {
        Tokenizer::Bytes => [0; 4],
        Tokenizer::File(path) => identity(path),
    };
    let cache = sources.cache.as_deref().map_or([0; 4], identity);
    let own = [of(Some(&sources.training)), of(sources.eval.as_ref()), tokenizer, cache];
    let mut all = vec![[[0; 4]; 4]; host.world_size()];
    host.all_gather(own.as_flattened(), all.as_flattened_mut().as_flattened_mut())?;
    Ok(all.iter().all(|other| *other == all[0]))
}

/// An error about a text, with the flag that named it.
fn with_flag(error: Error, flag: &str) -> Error {
    match error {
        Error::File { path, problem } => Error::File { path, problem: format!("{problem}; check {flag}") },
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

    fn sources(folder: &Path) -> Sources {
        let config = Config {
            data: Some(folder.join("text")),
            eval_data: Some("made".into()),
            tokenizer: Some(Tokenizer::File(folder.join("tokenizer.json"))),
            data_cache: Some(folder.join("cache")),
            ..Config::default()
        };
        Sources::new(&config).unwrap()
    }

    /// What each rank has, and how many have read by themselves; ranks sit on these hosts and read from these folders.
    fn read(hosts: &[usize], folders: &[&Path], vocabulary: usize) -> (Vec<Result<Texts>>, usize) {
        let count = AtomicUsize::new(0);
        let ranks = world(&Kind::Hosts(hosts.to_vec()), hosts.len(), &Chooser::default());
        let texts = each(&ranks, |comm| {
            let sources = sources(folders[comm.rank()]);
            let make = || {
                count.fetch_add(1, Ordering::Relaxed);
                make(&sources)
            };
            Texts::read_by(comm, &sources, vocabulary, &make)
        });
        (texts, count.into_inner())
    }

    #[test]
    fn one_rank_of_each_host_makes_tokens_for_all() {
        for words in [200, 300, 70_000] {
            let folder = folder(words);
            let (texts, read) = read(&[0, 1, 0, 1, 1], &[folder.path(); 5], words);
            assert_eq!(read, 2);
            for texts in texts {
                let texts = texts.unwrap();
                assert_eq!(texts.training.len(), words);
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
    fn tokens_are_made_again_when_the_text_or_the_tokenizer_is_another() {
        let folder = folder(200);
        let texts = || read(&[0], &[folder.path()], 200).0.remove(0).unwrap();
        let kept = || std::fs::read_dir(folder.path().join("cache")).unwrap().count();
        texts();
        assert_eq!(kept(), 2);
        let before = texts().training;
        assert_eq!(kept(), 2);
        std::fs::write(folder.path().join("text"), "w1 w2").unwrap();
        // What was mapped stays as it was.
        assert_eq!((texts().training.len(), before.len(), kept()), (2, 200, 3));
        let json = std::fs::read_to_string(folder.path().join("tokenizer.json")).unwrap();
        let other = json.replace("\"w1\": 1", "\"w1\": 200");
        std::fs::write(folder.path().join("tokenizer.json"), other).unwrap();
        assert!(read(&[0], &[folder.path()], 201).0.remove(0).unwrap().training.get(0) == Some(200));
        assert_eq!(kept(), 5);
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
        std::fs::write(folder.path().join("text"), b"w1 \xff").unwrap();
        for error in read(&[0, 0], &[folder.path(); 2], 200).0 {
            let error = error.err().expect("no text").to_string();
            assert!(error.contains("not UTF-8 from byte 3") && error.contains("check --data"), "{error}");
        }
    }
}
