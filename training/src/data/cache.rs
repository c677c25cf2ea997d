//! Tokens that were made once, in files of a folder.
//!
//! A file is written under a name of its own and gets its name when it is whole and on the disk, so whoever finds it finds all of
//! it; and as it is never changed again, it can be mapped. Those who make the same tokens at the same time do not disturb each
//! other: the last one's file stays, and maps of others stay valid.

use std::fs::{File, TryLockError};
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Tokens;
use super::mapped::{Map, Mapped};
use crate::digest::digest;
use crate::error::{Error, Result};

/// What a file begins with, and bytes before its tokens: that, the key, and four numbers.
const MAGIC: [u8; 16] = *b"nd tokens 1\0\0\0\0\0";
const HEADER: usize = 64;
/// How the name of a file ends that is being written.
const UNFINISHED: &str = "unfinished";
/// Bytes of which a digest is made at a time.
const PIECE: usize = 1 << 20;

/// What tokens were made of: digests of a text and of what made them.
pub type Key = [u64; 2];

/// A folder with tokens.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// In this folder, which is made if it is not there. What writers have left who did not live to end is taken away.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be.
    pub fn open(dir: &Path) -> Result<Cache> {
        let cache = Cache { dir: dir.to_owned() };
        std::fs::create_dir_all(dir).map_err(|e| cache.error(&e))?;
        let entries = std::fs::read_dir(dir).map_err(|e| cache.error(&e))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|ending| ending == UNFINISHED) && is_left(&path) {
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(cache)
    }

    /// The tokens of a key; none where there are none, or not all of them.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read.
    pub fn get(&self, key: Key) -> Result<Option<Tokens>> {
        let path = self.path(key);
        let read = || -> std::io::Result<_> {
            let mut file = File::open(&path)?;
            let mut header = [0; HEADER];
            file.read_exact(&mut header)?;
            Ok((Map::open(&file)?, header))
        };
        let (map, header) = match read() {
            Ok(read) => read,
            Err(e) if [ErrorKind::NotFound, ErrorKind::UnexpectedEof].contains(&e.kind()) => return Ok(None),
            Err(e) => {
                return Err(Error::File {
                    path,
                    problem: format!("cannot be read: {e}; check --data-cache"),
                });
            }
        };
        let words: Vec<u64> =
            header[MAGIC.len()..].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [first, second, width, len, largest, contents] = words[..] else { return Ok(None) };
        let whole = header.starts_with(&MAGIC) && [first, second] == key && [1, 2, 4].contains(&width);
        let bytes = len.checked_mul(width).filter(|_| whole);
        if bytes.and_then(|bytes| bytes.checked_add(HEADER as u64)) != Some(map.bytes().len() as u64) {
            return Ok(None);
        }
        let found = digest(map.bytes()[HEADER..].chunks(PIECE).fold(0, digest), &largest.to_le_bytes());
        Ok((found == contents)
            .then(|| Tokens::Mapped(Mapped::new(map, HEADER, width as usize, largest as u32))))
    }

    /// Makes the tokens of a key, of a vocabulary of so many: `write` hands them over by parts.
    ///
    /// # Errors
    /// Those of `write`; [`Error::File`] when they cannot be written.
    pub fn make(
        &self,
        key: Key,
        vocabulary: usize,
        write: impl FnOnce(&mut Writer<'_>) -> Result<()>,
    ) -> Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let unfinished =
            self.path(key).with_extension(format!("{}-{since}.{UNFINISHED}", std::process::id()));
        let made = self.written(&unfinished, key, vocabulary, write);
        if made.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        made
    }

    fn written(
        &self,
        unfinished: &Path,
        key: Key,
        vocabulary: usize,
        write: impl FnOnce(&mut Writer<'_>) -> Result<()>,
    ) -> Result<()> {
        let failed = |e: std::io::Error| self.error(&e);
        let file = File::options().create_new(true).write(true).open(unfinished).map_err(failed)?;
        // Whoever looks for what others have left sees that this one still writes.
        let _ = file.try_lock();
        let mut to = BufWriter::with_capacity(PIECE, file);
        to.write_all(&[0; HEADER]).map_err(failed)?;
        let width = match vocabulary {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        };
        let mut writer = Writer { cache: self, to, width, len: 0, largest: 0, digest: 0, piece: Vec::new() };
        write(&mut writer)?;
        let file = writer.finish(key).map_err(failed)?;
        std::fs::rename(unfinished, self.path(key)).map_err(failed)?;
        drop(file);
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    fn path(&self, [text, maker]: Key) -> PathBuf {
        self.dir.join(format!("{text:016x}-{maker:016x}.tokens"))
    }

    fn error(&self, error: &std::io::Error) -> Error {
        let problem = format!("tokens cannot be kept here: {error}; name another folder with --data-cache");
        Error::File { path: self.dir.clone(), problem }
    }
}

/// Whether nobody writes a file any more.
fn is_left(path: &Path) -> bool {
    match File::open(path).map(|file| file.try_lock()) {
        Ok(Ok(())) => true,
        Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_))) | Err(_) => false,
    }
}

/// Takes tokens.
pub struct Writer<'a> {
    cache: &'a Cache,
    to: BufWriter<File>,
    width: usize,
    len: u64,
    largest: u32,
    digest: u64,
    /// Of which a digest has still to be made.
    piece: Vec<u8>,
}

impl Writer<'_> {
    /// The next ones.
    ///
    /// # Errors
    /// [`Error::File`] when they cannot be written.
    pub fn add(&mut self, tokens: &[u32]) -> Result<()> {
        for token in tokens {
            self.largest = self.largest.max(*token);
            self.piece.extend(&token.to_le_bytes()[..self.width]);
            if self.piece.len() == PIECE {
                self.pass().map_err(|e| self.cache.error(&e))?;
            }
        }
        self.len += tokens.len() as u64;
        Ok(())
    }

    fn pass(&mut self) -> std::io::Result<()> {
        self.digest = digest(self.digest, &self.piece);
        self.to.write_all(&self.piece)?;
        self.piece.clear();
        Ok(())
    }

    fn finish(mut self, key: Key) -> std::io::Result<File> {
        if !self.piece.is_empty() {
            self.pass()?;
        }
        let largest = u64::from(self.largest);
        let contents = digest(self.digest, &largest.to_le_bytes());
        let numbers = [key[0], key[1], self.width as u64, self.len, largest, contents];
        self.to.seek(SeekFrom::Start(0))?;
        self.to.write_all(&MAGIC)?;
        numbers.iter().try_for_each(|number| self.to.write_all(&number.to_le_bytes()))?;
        let file = self.to.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const KEY: Key = [1, 2];

    fn make(cache: &Cache, tokens: &[u32]) -> Result<()> {
        cache.make(KEY, 1000, |writer| tokens.chunks(3).try_for_each(|part| writer.add(part)))
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn what_was_made_is_found_again_by_its_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&dir.path().join("new/folder")).unwrap();
        assert!(cache.get(KEY).unwrap().is_none());
        let all: Vec<u32> = (0..PIECE as u32).map(|i| i % 999).collect();
        make(&cache, &all).unwrap();
        let tokens = cache.get(KEY).unwrap().unwrap();
        assert!(tokens.len() == all.len() && (0..all.len()).all(|i| tokens.get(i) == Some(all[i])));
        assert_eq!(
            (tokens.get(all.len()), tokens.beyond(999), tokens.beyond(998)),
            (None, None, Some((998, 998)))
        );
        assert!(cache.get([1, 3]).unwrap().is_none());
        for (vocabulary, width) in [(256, 1), (257, 2), (65_536, 2), (65_537, 4)] {
            cache.make(KEY, vocabulary, |writer| writer.add(&[vocabulary as u32 - 1, 0])).unwrap();
            assert_eq!(cache.path(KEY).metadata().unwrap().len(), HEADER as u64 + 2 * width);
            assert_eq!(cache.get(KEY).unwrap().unwrap().get(0), Some(vocabulary as u32 - 1));
        }
    }

    #[test]
    fn half_written_and_damaged_files_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        make(&cache, &[5, 6, 7]).unwrap();
        let path = cache.path(KEY);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(cache.get(KEY).unwrap().is_none(), "{cut} bytes");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(cache.get(KEY).unwrap().is_none(), "byte {at}");
        }
        let failed = cache.make(KEY, 9, |_| Err(Error::Config("no".into())));
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert_eq!(names(dir.path()).len(), 1);
    }

    #[test]
    fn what_the_dead_have_left_is_taken_away_and_what_the_living_write_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("a.1-2.unfinished");
        std::fs::write(&left, "half").unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        assert!(!left.exists());
        cache
            .make(KEY, 9, |writer| {
                writer.add(&[1, 2])?;
                Cache::open(dir.path())?;
                assert_eq!(names(dir.path()).len(), 1);
                Ok(())
            })
            .unwrap();
        assert_eq!(cache.get(KEY).unwrap().unwrap().len(), 2);
    }

    #[test]
    fn several_that_make_the_same_at_once_leave_one_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let cache = Cache::open(dir.path()).unwrap();
                    barrier.wait();
                    make(&cache, &[1, 2, 3, 4]).unwrap();
                    let tokens = cache.get(KEY).unwrap().unwrap();
                    barrier.wait();
                    assert_eq!((0..4).map(|i| tokens.get(i).unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
                });
            }
        });
        assert_eq!(names(dir.path()).len(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_with_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = Cache::open(&path).unwrap_err().to_string();
        assert!(
            error.contains("file: tokens cannot be kept here") && error.contains("--data-cache"),
            "{error}"
        );
    }
}
