//! A model in the safetensors format.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserialize;

use super::layout::Layout;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::llama::Config;
use crate::llama::config::{EMBEDDING, HEAD};
use crate::{files, json};

/// Longest header that is read: that of the format's own library.
const LONGEST_HEADER: u64 = 100_000_000;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// Pieces of each tensor that are looked at to compare files, and their bytes.
const SAMPLES: u64 = 16;
const SAMPLE: u64 = 4096;
/// Names that a message lists.
const NAMES: usize = 5;

/// Open files, and where the tensors of a model lie in them.
pub(super) struct Checkpoint {
    config: Config,
    dir: PathBuf,
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

struct Stored {
    file: usize,
    shape: Vec<usize>,
    dtype: Dtype,
    /// Where it begins in the file, in bytes.
    start: u64,
}

impl Stored {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

/// The part of `model.safetensors.index.json` that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let config = Config::open(dir)?;
        let mut checkpoint =
            Checkpoint { config, dir: dir.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        match Layout::find(dir)? {
            Layout::Index(index) => checkpoint.read_index(&index)?,
            Layout::Files(files) => files.iter().try_for_each(|file| checkpoint.read_header(file))?,
            Layout::None => {
                return Err(file_error(
                    dir,
                    "neither model.safetensors nor model.safetensors.index.json is here",
                ));
            }
        }
        checkpoint.check()?;
        Ok(checkpoint)
    }

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
            for (start, len) in samples(stored.bytes()) {
                let piece = &mut piece[..len as usize];
                file.read_exact_at(piece, stored.start + start).map_err(|e| file_error(path, e))?;
                digests[stored.file] = digest(digests[stored.file], piece);
            }
        }
        Ok(self.files.iter().zip(digests).map(|(file, digest)| (&*file.path, file.bytes, digest)).collect())
    }

    fn read_index(&mut self, path: &Path) -> Result<()> {
        let text = files::regular(path).and_then(|()| std::fs::read_to_string(path));
        let text = text.map_err(|e| file_error(path, e))?;
        json::check(text.as_bytes()).map_err(|e| file_error(path, e))?;
        let index: Index = serde_json::from_str(&text).map_err(|e| file_error(path, e))?;
        for name in index.weight_map.values().collect::<BTreeSet<_>>() {
            if Path::new(name).components().count() != 1 || Path::new(name).file_name().is_none() {
                return Err(file_error(path, format!("{name:?} is not the name of a file beside it")));
            }
            self.read_header(&self.dir.join(name))?;
        }
        for (tensor, file) in &index.weight_map {
            let found = self.tensors.get(tensor).map(|stored| &self.files[stored.file].path);
            if found != Some(&self.dir.join(file)) {
                return Err(file_error(path, format!("{tensor} is not in {file}")));
            }
        }
        Ok(())
    }

    fn read_header(&mut self, path: &Path) -> Result<()> {
        let error = |problem: String| file_error(path, problem);
        let file = files::regular(path).and_then(|()| File::open(path)).map_err(|e| error(e.to_string()))?;
        let length = file.metadata().map_err(|e| error(e.to_string()))?.len();
        let mut size = [0; 8];
        file.read_exact_at(&mut size, 0)
            .map_err(|_| error(format!("{length} bytes are no safetensors file")))?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER || size > length.saturating_sub(8) {
            return Err(error(format!(
                "its header has {size} bytes and the file {length}: it is no safetensors file"
            )));
        }
        let mut header = vec![0; size as usize];
        file.read_exact_at(&mut header, 8).map_err(|e| error(e.to_string()))?;
        json::check(&header).map_err(|e| error(format!("its header: {e}; write the file again")))?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|e| error(format!("its header: {e}")))?;
        let expected = 8 + size + metadata.data_len() as u64;
        if length != expected {
            return Err(error(format!("it has {length} bytes and should have {expected}: copy it again")));
        }
        for (name, info) in metadata.tensors() {
            let stored = Stored {
                file: self.files.len(),
                shape: info.shape.clone(),
                dtype: info.dtype,
                start: 8 + size + info.data_offsets.0 as u64,
            };
            if self.tensors.insert(name.clone(), stored).is_some() {
                return Err(error(format!("{name} is in another file too")));
            }
        }
        self.files.push(Opened { path: path.to_owned(), file, bytes: length, digest: digest(0, &header) });
        Ok(())
    }

    /// Whether the tensors are those of the model.
    fn check(&self) -> Result<()> {
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
            let dtype = self.tensors.get(name)?.dtype;
            let known = matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16);
            (!known).then(|| format!("{name} is {dtype}"))
        });
        list("of a type other than f32, bf16 and f16", types.collect());
        if problems.is_empty() {
            return Ok(());
        }
        let problem = format!("tensors that config.json's model does not have so: {}", problems.join("; "));
        Err(file_error(&self.dir, problem))
    }

    /// A head that is not used because `config.json` says that the embedding is the head, although the two differ.
    pub fn unused_head(&self) -> Result<Option<&Path>> {
        let both = [HEAD, EMBEDDING].map(|name| self.tensors.get(name));
        let [Some(head), Some(embedding)] = both else { return Ok(None) };
        if !self.config.tie_word_embeddings {
            return Ok(None);
        }
        let path = &*self.files[head.file].path;
        if (&head.shape, head.dtype) != (&embedding.shape, embedding.dtype) {
            return Ok(Some(path));
        }
        // A head that was trained by itself differs everywhere.
        let [mut of_head, mut of_embedding] = [[0; SAMPLE as usize]; 2];
        for (start, len) in samples(head.bytes()) {
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
            file_error(&self.dir, format!("{name} is missing; is config.json the model's?"))
        })?;
        let Opened { path, file, .. } = &self.files[stored.file];
        if stored.shape != shape {
            return Err(file_error(path, format!("{name} is {:?} and should be {shape:?}", stored.shape)));
        }
        Ok(Reader { path, file, stored, bytes: Vec::new() })
    }
}

/// Reads a tensor by parts.
pub(super) struct Reader<'a> {
    path: &'a Path,
    file: &'a File,
    stored: &'a Stored,
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// As many elements as `out` has, from element `start` of the tensor on.
    pub fn read(&mut self, start: usize, out: &mut [f32]) -> Result<()> {
        let size = self.stored.dtype.bitsize() / 8;
        let mut at = self.stored.start + (start * size) as u64;
        for out in out.chunks_mut(PIECE / size) {
            self.bytes.resize(out.len() * size, 0);
            self.file.read_exact_at(&mut self.bytes, at).map_err(|e| file_error(self.path, e))?;
            at += self.bytes.len() as u64;
            match self.stored.dtype {
                Dtype::F32 => decode(&self.bytes, out, f32::from_le_bytes),
                Dtype::BF16 => decode(&self.bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
                _ => decode(&self.bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            }
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

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], one: impl Fn([u8; N]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = one(bytes);
    }
}

pub(super) fn file_error(path: &Path, problem: impl ToString) -> Error {
    Error::File { path: path.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::{Weights, save};
    use super::*;
    use crate::model::{Init, Parameter, Part};

    fn config() -> Config {
        Config {
            vocab_size: 10,
            hidden_size: 8,
            intermediate_size: 12,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 4,
            tie_word_embeddings: false,
            ..Config::default()
        }
    }

    fn written(config: &Config, dtype: Dtype) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let random = Weights::random(1);
        save(dir.path(), config, dtype, &mut |p, out| random.fill(p, 0..p.len(), out)).unwrap();
        dir
    }

    /// Two files with an index, made of one.
    fn divided(dir: &Path) {
        let path = dir.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut map = BTreeMap::new();
        for part in 0..2 {
            let name = format!("model-0000{part}.safetensors");
            let tensors: Vec<_> = all.tensors().into_iter().skip(part).step_by(2).collect();
            map.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
            safetensors::serialize_to_file(tensors, None, &dir.join(name)).unwrap();
        }
        std::fs::remove_file(path).unwrap();
        let index = serde_json::json!({ "metadata": { "total_size": 0 }, "weight_map": map });
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    #[test]
    fn what_was_written_is_read_by_parts_and_from_several_files() {
        let config = config();
        for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
            let dir = written(&config, dtype);
            for files in [1, 2] {
                if files == 2 {
                    divided(dir.path());
                }
                let weights = Weights::open(dir.path()).unwrap();
                assert_eq!(weights.config(), Some(&config));
                for (name, shape, init) in config.tensors() {
                    let mut parameter = Parameter::whole(name, &shape, init);
                    for (dim, &size) in shape.iter().enumerate() {
                        parameter.part = Some(Part { dim, start: size / 2, len: size / 2 });
                        let range = 1..parameter.len() - 1;
                        let [mut found, mut drawn] = [vec![0f32; range.len()], vec![0f32; range.len()]];
                        weights.fill(&parameter, range.clone(), &mut found).unwrap();
                        Weights::random(1).fill(&parameter, range, &mut drawn).unwrap();
                        for drawn in &mut drawn {
                            *drawn = match dtype {
                                Dtype::BF16 => bf16::from_f32(*drawn).to_f32(),
                                Dtype::F16 => f16::from_f32(*drawn).to_f32(),
                                _ => *drawn,
                            };
                        }
                        assert_eq!(found, drawn, "{} in {dtype}, {files} files", parameter.name);
                    }
                }
            }
        }
    }

    #[test]
    fn tensors_that_are_not_the_model_s_are_named() {
        let dir = written(&config(), Dtype::F32);
        let told = |other: &Config| {
            std::fs::write(dir.path().join("config.json"), other.to_json()).unwrap();
            Weights::open(dir.path()).err().map(|e| e.to_string())
        };
        assert_eq!(told(&config()), None);
        let error = told(&Config { num_hidden_layers: 3, ..config() }).unwrap();
        assert!(error.contains("9 missing: model.layers.2.input_layernorm.weight"), "{error}");
        let error = told(&Config { num_hidden_layers: 1, ..config() }).unwrap();
        assert!(error.contains("9 too many: model.layers.1."), "{error}");
        let error = told(&Config { vocab_size: 11, ..config() }).unwrap();
        assert!(error.contains("model.embed_tokens.weight is [10, 8] and should be [11, 8]"), "{error}");
        // The copy of a tied head may be there.
        assert_eq!(told(&Config { tie_word_embeddings: true, ..config() }), None);
    }

    #[test]
    fn a_head_that_tied_embeddings_leave_out_is_named_unless_it_is_their_copy() {
        let untied = config();
        let dir = tempfile::tempdir().unwrap();
        let warned = |drawn: &str, tie_word_embeddings: bool| {
            let random = Weights::random(1);
            let fill = &mut |p: &Parameter, out: &mut [f32]| {
                let name = if p.name == HEAD { drawn.to_owned() } else { p.name.clone() };
                random.fill(&Parameter { name, ..p.clone() }, 0..p.len(), out)
            };
            save(dir.path(), &untied, Dtype::F32, fill).unwrap();
            let config = Config { tie_word_embeddings, ..untied.clone() };
            std::fs::write(dir.path().join("config.json"), config.to_json()).unwrap();
            Weights::open(dir.path()).unwrap().warning().unwrap()
        };
        let warning = warned(HEAD, true).unwrap();
        assert!(warning.contains("model.safetensors: lm_head.weight is not used"), "{warning}");
        assert!(warning.contains("tie_word_embeddings"), "{warning}");
        assert_eq!([warned(EMBEDDING, true), warned(HEAD, false)], [None, None]);
        assert_eq!(Weights::random(1).warning().unwrap(), None);
    }

    #[test]
    fn a_name_twice_in_a_header_is_refused() {
        let dir = written(&config(), Dtype::F32);
        let path = dir.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
        let at = header.find("\"model.norm.weight\"").unwrap();
        let end = header[at..].find('}').unwrap();
        let twice = header.replacen('{', &format!("{{{},", &header[at..=at + end]), 1);
        bytes.splice(8..8 + len, twice.bytes());
        bytes[..8].copy_from_slice(&(twice.len() as u64).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let error = Weights::open(dir.path()).err().expect("an error").to_string();
        assert!(error.contains("model.safetensors: its header: model.norm.weight is there twice"), "{error}");
    }

    #[test]
    fn damaged_and_missing_files_are_named() {
        let dir = written(&config(), Dtype::F32);
        let path = dir.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let told = || Weights::open(dir.path()).err().expect("an error").to_string();
        for (bytes, words) in [
            (&bytes[..bytes.len() - 1], "copy it again"),
            (&bytes[..5], "no safetensors file"),
            (&[0xff; 64], "no safetensors file"),
            (b"\x02\0\0\0\0\0\0\0[]", "header"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = told();
            assert!(error.contains(words) && error.contains("model.safetensors"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(told().contains("neither"));
        let index = dir.path().join("model.safetensors.index.json");
        std::fs::write(&index, r#"{"weight_map": {"a": "../b"}}"#).unwrap();
        assert!(told().contains("not the name of a file"));
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(&index, r#"{"weight_map": {"a": "model.safetensors"}}"#).unwrap();
        assert!(told().contains("a is not in model.safetensors"));
        std::fs::remove_file(dir.path().join("config.json")).unwrap();
        assert!(told().contains("config.json"));
    }

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

    #[test]
    fn another_number_gives_another_digest() {
        let dir = written(&config(), Dtype::F32);
        let path = dir.path().join("model.safetensors");
        let of = || Weights::open(dir.path()).unwrap().files().unwrap();
        let before = of();
        assert_eq!((before.len(), &before[0].0, before[0].1), (1, &path, path.metadata().unwrap().len()));
        assert_eq!(of(), before);
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len() - 1;
        bytes[end] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_ne!(of()[0].2, before[0].2);
        assert_eq!(Weights::random(1).files().unwrap(), []);
    }

    #[test]
    fn a_range_that_does_not_fit_is_refused() {
        let parameter = Parameter::whole("w", &[4], Init::Ones);
        let error = Weights::random(0).fill(&parameter, 2..5, &mut [0.0; 3]).unwrap_err().to_string();
        assert!(error.contains("2..5 of 4"), "{error}");
        assert!(Weights::random(0).fill(&parameter, 0..2, &mut [0.0; 3]).is_err());
    }
}
