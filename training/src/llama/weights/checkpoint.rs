//! A model in files: which tensors it has, where they lie, and their numbers by parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::digest::digest;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::llama::Config;
use crate::llama::config::{EMBEDDING, HEAD};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// Pieces of each tensor that are looked at to compare files, and their bytes.
const SAMPLES: u64 = 16;
const SAMPLE: u64 = 4096;
/// Names that a message lists.
const NAMES: usize = 5;

/// Open files, and where the tensors of a model lie in them.
pub(in crate::llama) struct Checkpoint {
    config: Config,
    /// The folder, or the one file.
    place: PathBuf,
    files: Vec<Opened>,
    tensors: BTreeMap<String, Stored>,
}

struct Opened {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Of its header.
    digest: u64,
}

/// Where a tensor lies, under Hugging Face's name for it.
pub(in crate::llama) struct Stored {
    /// Which of the files it is in.
    pub file: usize,
    pub shape: Vec<usize>,
    /// The name of its type where that is none that can be read.
    pub encoding: Result<Encoding, String>,
    /// Where it begins in its file, and how long it is, in bytes.
    pub start: u64,
    pub bytes: u64,
    pub rows: Rows,
}

/// In which order the rows of a tensor lie in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::llama) enum Rows {
    InOrder,
    /// The two halves of each head's so many rows take turns: so llama.cpp has queries and keys, as it turns neighbouring
    /// channels, and Hugging Face's Llama turns channel `i` with `i + head_dim / 2`.
    Interleaved(usize),
}

impl Rows {
    /// Where a row lies.
    fn place(self, row: usize) -> usize {
        match self {
            Rows::InOrder => row,
            Rows::Interleaved(head_dim) => {
                let (head, inside, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + 2 * (inside % half) + inside / half
            }
        }
    }
}

impl Checkpoint {
    /// Of a model that lies in this folder or file; nothing is read yet.
    pub fn new(config: Config, place: &Path) -> Checkpoint {
        Checkpoint { config, place: place.to_owned(), files: Vec::new(), tensors: BTreeMap::new() }
    }

    /// One more file, with its length, a digest of its header, and its tensors.
    ///
    /// # Errors
    /// [`Error::File`] when another file has one of the tensors.
    pub fn add(
        &mut self,
        path: &Path,
        (file, bytes, digest): (File, u64, u64),
        tensors: impl IntoIterator<Item = (String, Stored)>,
    ) -> Result<()> {
        for (name, stored) in tensors {
            let twice = file_error(path, format!("{name} is in another file too"));
            let stored = Stored { file: self.files.len(), ..stored };
            if self.tensors.insert(name, stored).is_some() {
                return Err(twice);
            }
        }
        self.files.push(Opened { path: path.to_owned(), file, bytes, digest });
        Ok(())
    }

    /// Forgets a tensor that is no part of the model.
    pub fn leave_out(&mut self, tensor: &str) {
        self.tensors.remove(tensor);
    }

    /// The file that has a tensor.
    pub fn file_of(&self, tensor: &str) -> Option<&Path> {
        self.tensors.get(tensor).map(|stored| &*self.files[stored.file].path)
    }

    /// The model that the tensors belong to.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many tensors there are, in which files.
    pub fn contents(&self) -> (usize, impl Iterator<Item = &Path>) {
        (self.tensors.len(), self.files.iter().map(|file| file.path.as_path()))
    }

    /// Each file's path, length, and a digest of what [`Weights::files`](super::Weights::files) says.
    pub fn digests(&self) -> Result<Vec<(&Path, u64, u64)>> {
        let mut digests: Vec<u64> = self.files.iter().map(|file| file.digest).collect();
        let mut piece = vec![0; SAMPLE as usize];
        for stored in self.tensors.values() {
            let Opened { path, file, .. } = &self.files[stored.file];
            for (start, len) in samples(stored.bytes) {
                let piece = &mut piece[..len as usize];
                file.read_exact_at(piece, stored.start + start).map_err(|e| file_error(path, e))?;
                digests[stored.file] = digest(digests[stored.file], piece);
            }
        }
        Ok(self.files.iter().zip(digests).map(|(file, digest)| (&*file.path, file.bytes, digest)).collect())
    }

    /// Whether the tensors are those of the model.
    ///
    /// # Errors
    /// [`Error::File`] naming those that are missing, too many, or of another shape or type.
    pub fn check(&self) -> Result<()> {
        let wanted = self.config.tensors();
        let mut problems = Vec::new();
        let mut list = |what: &str, names: Vec<String>| {
            if !names.is_empty() {
                let more = if names.len() > NAMES { ", …" } else { "" };
                let shown = &names[..names.len().min(NAMES)];
                problems.push(format!("{} {what}: {}{more}", names.len(), shown.join(", ")));
            }
        };
        let missing = wanted.iter().filter(|(name, ..)| !self.tensors.contains_key(name));
        list("missing", missing.map(|(name, ..)| name.clone()).collect());
        let names: BTreeSet<&str> = wanted.iter().map(|(name, ..)| name.as_str()).collect();
        let surplus = self.tensors.keys().filter(|name| !names.contains(name.as_str()) && !self.spare(name));
        list("too many", surplus.cloned().collect());
        let other = wanted.iter().filter_map(|(name, shape, _)| {
            let stored = self.tensors.get(name)?;
            let told = || format!("{name} is {:?} and should be {shape:?}", stored.shape);
            (stored.shape != *shape).then(told)
        });
        list("of another shape", other.collect());
        let types = wanted.iter().filter_map(|(name, ..)| {
            let other = self.tensors.get(name)?.encoding.as_ref().err()?;
            Some(format!("{name} is {other}"))
        });
        list("of a type other than f32, bf16 and f16", types.collect());
        if problems.is_empty() {
            return Ok(());
        }
        let problem = format!("tensors that the model does not have so: {}", problems.join("; "));
        Err(file_error(&self.place, problem))
    }

    /// A head that is not used because `config.json` says that the embedding is the head, although the two differ.
    pub fn unused_head(&self) -> Result<Option<&Path>> {
        let both = [HEAD, EMBEDDING].map(|name| self.tensors.get(name));
        let [Some(head), Some(embedding)] = both else { return Ok(None) };
        if !self.config.tie_word_embeddings {
            return Ok(None);
        }
        let path = &*self.files[head.file].path;
        if (&head.shape, &head.encoding) != (&embedding.shape, &embedding.encoding) {
            return Ok(Some(path));
        }
        // A head that was trained by itself differs everywhere.
        let [mut of_head, mut of_embedding] = [[0; SAMPLE as usize]; 2];
        for (start, len) in samples(head.bytes) {
            for (stored, piece) in [(head, &mut of_head), (embedding, &mut of_embedding)] {
                let Opened { path, file, .. } = &self.files[stored.file];
                let piece = &mut piece[..len as usize];
                file.read_exact_at(piece, stored.start + start).map_err(|e| file_error(path, e))?;
            }
            if of_head != of_embedding {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Whether a tensor that the model does not have may be there all the same: the copy of a tied head, and the table
    /// that older files hold.
    fn spare(&self, name: &str) -> bool {
        (name == HEAD && self.config.tie_word_embeddings) || name.ends_with(".rotary_emb.inv_freq")
    }

    /// To read a tensor that should have this shape.
    pub fn reader(&self, name: &str, shape: &[usize]) -> Result<Reader<'_>> {
        let stored = self.tensors.get(name).ok_or_else(|| {
            file_error(&self.place, format!("{name} is missing; is config.json the model's?"))
        })?;
        let Opened { path, file, .. } = &self.files[stored.file];
        if stored.shape != shape {
            return Err(file_error(path, format!("{name} is {:?} and should be {shape:?}", stored.shape)));
        }
        let encoding =
            stored.encoding.clone().map_err(|other| file_error(path, format!("{name} is {other}")))?;
        Ok(Reader { path, file, stored, encoding, bytes: Vec::new(), block: Vec::new() })
    }
}

/// Reads a tensor by parts.
pub(in crate::llama) struct Reader<'a> {
    path: &'a Path,
    file: &'a File,
    stored: &'a Stored,
    encoding: Encoding,
    bytes: Vec<u8>,
    /// Of blocks of which not all is asked for.
    block: Vec<f32>,
}

impl Reader<'_> {
    /// As many elements as `out` has, from element `start` of the tensor on.
    pub fn read(&mut self, start: usize, out: &mut [f32]) -> Result<()> {
        if self.stored.rows == Rows::InOrder {
            return self.read_stored(start, out);
        }
        let row: usize = self.stored.shape.iter().skip(1).product();
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let (index, inside) = (at / row, at % row);
            let (part, after) = rest.split_at_mut((row - inside).min(rest.len()));
            self.read_stored(self.stored.rows.place(index) * row + inside, part)?;
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }

    /// As they lie in the file. Blocks are read whole, and the elements at both ends that are not asked for left out.
    fn read_stored(&mut self, start: usize, out: &mut [f32]) -> Result<()> {
        let (block, size) = (self.encoding.block(), self.encoding.bytes());
        let longest = (PIECE / size).max(1) * block;
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let before = at % block;
            let (part, after) = rest.split_at_mut(rest.len().min(longest - before));
            let blocks = (before + part.len()).div_ceil(block);
            self.bytes.resize(blocks * size, 0);
            let place = self.stored.start + (at / block * size) as u64;
            self.file.read_exact_at(&mut self.bytes, place).map_err(|e| file_error(self.path, e))?;
            if blocks * block == part.len() {
                self.encoding.decode(&self.bytes, part)?;
            } else {
                self.block.resize(blocks * block, 0.0);
                self.encoding.decode(&self.bytes, &mut self.block)?;
                part.copy_from_slice(&self.block[before..before + part.len()]);
            }
            (at, rest) = (at + part.len(), after);
        }
        Ok(())
    }
}

/// Where pieces of so many bytes begin and how long they are: at equal distances, the first at the beginning and the last at the
/// end; all of it where that is no more.
fn samples(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = bytes.div_ceil(SAMPLE).min(SAMPLES);
    let last = bytes.saturating_sub(SAMPLE);
    (0..count).map(move |i| {
        let start = if bytes > SAMPLES * SAMPLE { last / (count - 1) * i } else { i * SAMPLE };
        let start = if i + 1 == count { start.max(last) } else { start };
        (start, SAMPLE.min(bytes - start))
    })
}

pub(in crate::llama) fn file_error(path: &Path, problem: impl ToString) -> Error {
    Error::File { path: path.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_all_of_a_short_tensor_and_both_ends_of_a_long_one() {
        for bytes in [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, (3 << 30) + 1] {
            let all: Vec<_> = samples(bytes).collect();
            assert!(
                all.len() <= SAMPLES as usize && all.iter().all(|(start, len)| start + len <= bytes),
                "{bytes}"
            );
            assert_eq!(all.first().map(|s| s.0), (bytes > 0).then_some(0));
            assert_eq!(all.last().map_or(0, |(start, len)| start + len), bytes);
            if bytes <= SAMPLES * SAMPLE {
                let seen = |byte| all.iter().any(|(start, len)| (*start..start + len).contains(&byte));
                assert!((0..bytes).all(seen), "{bytes}");
            }
        }
    }
}
