//! Writes a model as Hugging Face lays it out.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use serde_json::{Map, json};

use crate::error::{Error, Result};
use crate::llama::Config;
use crate::model::Parameter;

/// Writes `config.json` and `model.safetensors` into a directory, one tensor after the other: `fill` gives each whole
/// tensor's elements, so no more than one of them is in memory. Files of those names are replaced when all is written.
///
/// # Errors
/// Those of `fill`; [`Error::Config`] for a type other than f32, bf16 and f16; [`Error::File`] when it cannot be written.
pub fn save(
    dir: &Path,
    config: &Config,
    dtype: Dtype,
    fill: &mut dyn FnMut(&Parameter, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let encode: fn(f32, &mut Vec<u8>) = match dtype {
        Dtype::F32 => |x, bytes| bytes.extend(x.to_le_bytes()),
        Dtype::BF16 => |x, bytes| bytes.extend(bf16::from_f32(x).to_le_bytes()),
        Dtype::F16 => |x, bytes| bytes.extend(f16::from_f32(x).to_le_bytes()),
        other => return Err(Error::Config(format!("{other}: a model is written as F32, BF16 or F16"))),
    };
    replace(&dir.join("config.json"), |file| {
        file.write_all(config.to_json().as_bytes()).map_err(Into::into)
    })?;
    replace(&dir.join("model.safetensors"), |file| {
        let header = header(config, dtype);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let (mut elements, mut bytes) = (Vec::new(), Vec::new());
        for (name, shape, init) in config.tensors() {
            let parameter = Parameter::whole(name, &shape, init);
            elements.clear();
            elements.resize(parameter.len(), 0.0);
            fill(&parameter, &mut elements)?;
            bytes.clear();
            elements.iter().for_each(|&x| encode(x, &mut bytes));
            file.write_all(&bytes)?;
        }
        Ok(())
    })
}

/// What the file begins with: types, shapes and places, padded so that the tensors lie at multiples of eight bytes.
fn header(config: &Config, dtype: Dtype) -> String {
    let mut entries = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
    let mut start = 0;
    for (name, shape, _) in config.tensors() {
        let end = start + shape.iter().product::<usize>() * dtype.bitsize() / 8;
        entries.insert(
            name,
            json!({ "dtype": dtype.to_string(), "shape": shape, "data_offsets": [start, end] }),
        );
        start = end;
    }
    let mut header = serde_json::Value::Object(entries).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    header
}

/// What stops the writing of a file: the file, or who gives what is written.
enum Stop {
    File(std::io::Error),
    Other(Error),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::File(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Other(error)
    }
}

/// Writes a file under another name and gives it its own when it is whole.
fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> Result<(), Stop>) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let written = || {
        let mut file = BufWriter::new(File::create(&unfinished)?);
        write(&mut file)?;
        file.flush()?;
        std::fs::rename(&unfinished, path)?;
        Ok(())
    };
    written().map_err(|stop| {
        let _ = std::fs::remove_file(&unfinished);
        match stop {
            Stop::File(e) => Error::File { path: path.to_owned(), problem: e.to_string() },
            Stop::Other(error) => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Weights;
    use super::*;

    #[test]
    fn the_format_s_own_library_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { num_hidden_layers: 1, ..Config::default() };
        let random = Weights::random(2);
        save(dir.path(), &config, Dtype::F32, &mut |p, out| random.fill(p, 0..p.len(), out)).unwrap();
        let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), config.tensors().len());
        for (name, shape, init) in config.tensors() {
            let tensor = file.tensor(&name).unwrap();
            assert_eq!((tensor.shape(), tensor.dtype()), (&shape[..], Dtype::F32));
            let parameter = Parameter::whole(name, &shape, init);
            let mut expected = vec![0.0; parameter.len()];
            random.fill(&parameter, 0..parameter.len(), &mut expected).unwrap();
            let found: Vec<f32> =
                tensor.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_failure_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        std::fs::write(dir.path().join("model.safetensors"), "before").unwrap();
        let failed = save(dir.path(), &config, Dtype::F32, &mut |_, _| Err(Error::Config("no".into())));
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert_eq!(std::fs::read_to_string(dir.path().join("model.safetensors")).unwrap(), "before");
        assert!(!dir.path().join("model.unfinished").exists());
        assert!(save(dir.path(), &config, Dtype::F64, &mut |_, _| Ok(())).is_err());
        assert!(save(&dir.path().join("absent"), &config, Dtype::F32, &mut |_, _| Ok(())).is_err());
    }
}
