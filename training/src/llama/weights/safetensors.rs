//! A model in the safetensors format.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::checkpoint::{Checkpoint, Rows, Stored, file_error};
use super::layout::Layout;
use crate::encoding::Encoding;
use crate::error::Result;
use crate::llama::Config;
use crate::tensor_file::{Placed, TensorFile};
use crate::{files, json};

/// The part of `model.safetensors.index.json` that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The model in a folder.
pub(super) fn open(dir: &Path) -> Result<Checkpoint> {
    let mut checkpoint = Checkpoint::new(Config::open(dir)?, dir);
    match Layout::find(dir)? {
        Layout::Index(index) => read_index(&mut checkpoint, dir, &index)?,
        Layout::Files(files) => files.iter().try_for_each(|file| read_header(&mut checkpoint, file))?,
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

fn read_index(checkpoint: &mut Checkpoint, dir: &Path, path: &Path) -> Result<()> {
    let text = files::regular(path).and_then(|()| std::fs::read_to_string(path));
    let text = text.map_err(|e| file_error(path, e))?;
    json::check(text.as_bytes()).map_err(|e| file_error(path, e))?;
    let index: Index = serde_json::from_str(&text).map_err(|e| file_error(path, e))?;
    for name in index.weight_map.values().collect::<BTreeSet<_>>() {
        if Path::new(name).components().count() != 1 || Path::new(name).file_name().is_none() {
            return Err(file_error(path, format!("{name:?} is not the name of a file beside it")));
        }
        read_header(checkpoint, &dir.join(name))?;
    }
    for (tensor, file) in &index.weight_map {
        if checkpoint.file_of(tensor) != Some(&dir.join(file)) {
            return Err(file_error(path, format!("{tensor} is not in {file}")));
        }
    }
    Ok(())
}

fn read_header(checkpoint: &mut Checkpoint, path: &Path) -> Result<()> {
    let TensorFile { file, bytes, digest, tensors } = TensorFile::open(path)?;
    let stored = tensors.into_iter().map(|(name, placed)| {
        let encoding = match placed.dtype {
            Dtype::F32 => Ok(Encoding::F32),
            Dtype::F16 => Ok(Encoding::F16),
            Dtype::BF16 => Ok(Encoding::BF16),
            other => Err(other.to_string()),
        };
        let Placed { shape, start, bytes, .. } = placed;
        (name, Stored { file: 0, shape, encoding, start, bytes, rows: Rows::InOrder })
    });
    checkpoint.add(path, (file, bytes, digest), stored)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use half::{bf16, f16};

    use super::super::{Weights, save};
    use super::*;
    use crate::llama::config::{EMBEDDING, HEAD};
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

    fn written(config: &Config, dtype: DType) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let random = Weights::random(1);
        save(dir.path(), config, &dtype.into(), &mut |p, out| random.fill(p, 0..p.len(), out)).unwrap();
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
        for dtype in [DType::F32, DType::BF16, DType::F16] {
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
                                DType::BF16 => bf16::from_f32(*drawn).to_f32(),
                                DType::F16 => f16::from_f32(*drawn).to_f32(),
                                _ => *drawn,
                            };
                        }
                        assert_eq!(found, drawn, "{} in {dtype:?}, {files} files", parameter.name);
                    }
                }
            }
        }
    }

    #[test]
    fn tensors_that_are_not_the_model_s_are_named() {
        let dir = written(&config(), DType::F32);
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
            save(dir.path(), &untied, &DType::F32.into(), fill).unwrap();
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
        let dir = written(&config(), DType::F32);
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
        let dir = written(&config(), DType::F32);
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
    fn another_number_gives_another_digest() {
        let dir = written(&config(), DType::F32);
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
