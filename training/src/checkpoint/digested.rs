//! Files that are written with a digest of what is in them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::digest::digest;

/// Bytes of which a digest is made at a time.
const PIECE: usize = 1 << 20;

/// A file's length and digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    pub bytes: u64,
    pub digest: u64,
}

impl Contents {
    /// Of a file that is there.
    pub fn of(path: &Path) -> io::Result<Contents> {
        let mut file = File::open(path)?;
        let mut contents = Contents { bytes: 0, digest: 0 };
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            piece.clear();
            (&mut file).take(PIECE as u64).read_to_end(&mut piece)?;
            if piece.is_empty() {
                return Ok(contents);
            }
            contents.add(&piece);
        }
    }

    fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.digest = digest(self.digest, piece);
    }
}

/// Writes a new file that is on the disk when this returns: `write` gives it its bytes.
pub fn write(path: &Path, write: impl FnOnce(&mut Writer) -> io::Result<()>) -> io::Result<Contents> {
    let mut writer = Writer {
        file: File::create_new(path)?,
        contents: Contents { bytes: 0, digest: 0 },
        piece: Vec::with_capacity(PIECE),
    };
    write(&mut writer)?;
    writer.pass()?;
    writer.file.sync_all()?;
    Ok(writer.contents)
}

/// Takes the bytes of a file.
pub struct Writer {
    file: File,
    contents: Contents,
    piece: Vec<u8>,
}

impl Writer {
    /// The next ones.
    pub fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == PIECE {
                self.pass()?;
            }
        }
        Ok(())
    }

    fn pass(&mut self) -> io::Result<()> {
        if !self.piece.is_empty() {
            self.file.write_all(&self.piece)?;
            self.contents.add(&self.piece);
            self.piece.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_by_parts_has_the_digest_of_the_whole() {
        let dir = tempfile::tempdir().unwrap();
        for (i, len) in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5].into_iter().enumerate() {
            let all: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let path = dir.path().join(i.to_string());
            let contents = write(&path, |to| all.chunks(70_001).try_for_each(|part| to.add(part))).unwrap();
            assert_eq!((contents.bytes, Contents::of(&path).unwrap()), (len as u64, contents));
            assert_eq!(std::fs::read(&path).unwrap(), all);
            assert!(write(&path, |_| Ok(())).is_err(), "it is there");
        }
    }
}
