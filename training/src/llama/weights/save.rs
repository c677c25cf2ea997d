//! Writes a model as Hugging Face lays it out.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use candle_core::DType;
use serde_json::{Map, json};

use super::checkpoint::file_error;
use super::layout::Layout;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::llama::Config;
use crate::model::{Init, Parameter};
use crate::tensor_file::header;

/// Bytes of tensors in a file at most, unless one tensor alone has more: as Hugging Face's libraries do it.
const LARGEST: usize = 5_000_000_000;

/// How a model is written.
#[derive(Debug, Clone)]
pub struct Format {
    /// f32, bf16 or f16.
    pub dtype: DType,
    /// Bytes of tensors in a file; models that have more are written into several files with an index.
    pub largest: usize,
    /// Files that belong to the model besides, such as its tokenizer: their names and contents.
    pub beside: Vec<(String, Vec<u8>)>,
}

impl From<DType> for Format {
    /// Files of at most 5 GB, and nothing besides.
    fn from(dtype: DType) -> Format {
        Format { dtype, largest: LARGEST, beside: Vec::new() }
    }
}

/// Writes a model into a directory, which is made if it is not there: `model.safetensors`, or several files with
/// `model.safetensors.index.json`, and last of all `config.json`, without which no folder holds a model. Tensors are
/// written one after the other: `fill` gives each whole one's elements, so no more than one of them is in memory. Each
/// file gets its name when it is whole and on the disk.
///
/// # Errors
/// Those of `fill`; [`Error::Config`] for a type other than f32, bf16 and f16; [`Error::File`] when it cannot be written.
pub fn save(
    dir: &Path,
    config: &Config,
    format: &Format,
    fill: &mut dyn FnMut(&Parameter, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let encoding = match format.dtype {
        DType::F32 => Encoding::F32,
        DType::BF16 => Encoding::BF16,
        DType::F16 => Encoding::F16,
        other => return Err(Error::Config(format!("{other:?}: a model is written as F32, BF16 or F16"))),
    };
    make_room(dir)?;
    let tensors = config.tensors();
    let size = |(_, shape, _): &Tensor| shape.iter().product::<usize>() * encoding.bytes();
    let sizes: Vec<usize> = tensors.iter().map(size).collect();
    let parts = parts(&sizes, format.largest);
    let mut map = Map::new();
    for (part, range) in parts.iter().enumerate() {
        let name = match parts.len() {
            1 => "model.safetensors".to_owned(),
            of => format!("model-{:05}-of-{of:05}.safetensors", part + 1),
        };
        let tensors = &tensors[range.clone()];
        replace(&dir.join(&name), |file| write(file, tensors, encoding, fill))?;
        map.extend(tensors.iter().map(|(tensor, ..)| (tensor.clone(), json!(name))));
    }
    let whole = |name: &str, contents: &[u8]| {
        replace(&dir.join(name), |file| file.write_all(contents).map_err(Into::into))
    };
    if parts.len() > 1 {
        let index = json!({ "metadata": { "total_size": sizes.iter().sum::<usize>() }, "weight_map": map });
        whole("model.safetensors.index.json", format!("{index:#}\n").as_bytes())?;
    }
    format.beside.iter().try_for_each(|(name, contents)| whole(name, contents))?;
    whole("config.json", config.to_json().as_bytes())?;
    // The names are on the disk when the directory is.
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| file_error(dir, e))
}

/// Whether a model can be written into a directory without mixing it with another.
///
/// # Errors
/// [`Error::File`] for one that holds a model or a part of one, and for what is no directory.
pub fn has_room(dir: &Path) -> Result<()> {
    let refused = |problem: &str| Err(file_error(dir, problem));
    if !dir.exists() {
        return Ok(());
    }
    if !dir.is_dir() {
        return refused("it is no folder; name another with --save");
    }
    match dir.join("config.json").exists() || !matches!(Layout::find(dir), Ok(Layout::None)) {
        true => refused("it holds a model already; name another folder with --save, or take that model away"),
        false => Ok(()),
    }
}

/// Makes the directory, if it is not there.
///
/// # Errors
/// [`Error::File`] when it cannot be made.
pub fn make_room(dir: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(dir);
    made.map_err(|e| file_error(dir, format!("cannot be made: {e}; check --save")))
}

/// A tensor's name, shape, and what it holds before training.
type Tensor = (String, Vec<usize>, Init);

/// Which of the tensors of these sizes go into each file.
fn parts(sizes: &[usize], largest: usize) -> Vec<Range<usize>> {
    let (mut parts, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (i, size) in sizes.iter().enumerate() {
        if i > begin && bytes + size > largest {
            parts.push(begin..i);
            (begin, bytes) = (i, 0);
        }
        bytes += size;
    }
    parts.push(begin..sizes.len());
    parts
}

fn write(
    file: &mut BufWriter<File>,
    tensors: &[Tensor],
    encoding: Encoding,
    fill: &mut dyn FnMut(&Parameter, &mut [f32]) -> Result<()>,
) -> Result<(), Stop> {
    let named = tensors.iter().map(|(name, shape, _)| (name.as_str(), shape.as_slice()));
    file.write_all(&header(named, encoding))?;
    let (mut elements, mut bytes) = (Vec::new(), Vec::new());
    for (name, shape, init) in tensors {
        let parameter = Parameter::whole(name, shape, *init);
        elements.clear();
        elements.resize(parameter.len(), 0.0);
        fill(&parameter, &mut elements)?;
        bytes.clear();
        elements.iter().for_each(|&x| encoding.encode(x, &mut bytes));
        file.write_all(&bytes)?;
    }
    Ok(())
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
        file.get_ref().sync_all()?;
        std::fs::rename(&unfinished, path)?;
        Ok(())
    };
    written().map_err(|stop| {
        let _ = std::fs::remove_file(&unfinished);
        match stop {
            Stop::File(e) => file_error(path, format!("cannot be written: {e}")),
            Stop::Other(error) => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::Dtype;

    use super::super::Weights;
    use super::*;

    #[test]
    fn the_format_s_own_library_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { num_hidden_layers: 1, ..Config::default() };
        let random = Weights::random(2);
        save(dir.path(), &config, &DType::F32.into(), &mut |p, out| random.fill(p, 0..p.len(), out)).unwrap();
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
        let failed =
            save(dir.path(), &config, &DType::F32.into(), &mut |_, _| Err(Error::Config("no".into())));
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert_eq!(std::fs::read_to_string(dir.path().join("model.safetensors")).unwrap(), "before");
        assert!(!dir.path().join("model.unfinished").exists());
        assert!(save(dir.path(), &config, &DType::F64.into(), &mut |_, _| Ok(())).is_err());
        let no_folder = dir.path().join("model.safetensors");
        assert!(save(&no_folder, &config, &DType::F32.into(), &mut |_, _| Ok(())).is_err());
    }

    #[test]
    fn several_files_have_an_index_and_are_read_again_as_one_model() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        let random = Weights::random(2);
        let beside = vec![("tokenizer.json".to_owned(), b"{}".to_vec())];
        let format = Format { dtype: DType::F32, largest: 1_000_000, beside };
        save(dir.path(), &config, &format, &mut |p, out| random.fill(p, 0..p.len(), out)).unwrap();
        let count = |ending: &str| {
            let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().ends_with(ending)).count()
        };
        assert!(count(".safetensors") > 2 && count("model.safetensors") == 0);
        assert_eq!([count(".json"), count("unfinished")], [3, 0]);
        let weights = Weights::open(dir.path()).unwrap();
        assert_eq!(weights.config(), Some(&config));
        for (name, shape, init) in config.tensors() {
            let parameter = Parameter::whole(name, &shape, init);
            let [mut found, mut drawn] = [vec![0.0; parameter.len()], vec![0.0; parameter.len()]];
            weights.fill(&parameter, 0..found.len(), &mut found).unwrap();
            random.fill(&parameter, 0..drawn.len(), &mut drawn).unwrap();
            assert_eq!(found, drawn, "{}", parameter.name);
        }
    }

    #[test]
    fn files_are_as_few_as_their_sizes_allow() {
        assert_eq!(parts(&[4, 4, 4], 12), std::slice::from_ref(&(0..3)));
        assert_eq!(parts(&[4, 4, 4], 8), [0..2, 2..3]);
        assert_eq!(parts(&[9, 1, 9], 4), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn a_folder_with_a_model_or_half_of_one_has_no_room() {
        let dir = tempfile::tempdir().unwrap();
        has_room(dir.path()).unwrap();
        has_room(&dir.path().join("absent/folder")).unwrap();
        std::fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
        has_room(dir.path()).unwrap();
        for name in ["config.json", "model-00001-of-00002.safetensors", "model.safetensors"] {
            std::fs::write(dir.path().join(name), "").unwrap();
            let error = has_room(dir.path()).unwrap_err().to_string();
            assert!(error.contains("holds a model already") && error.contains("--save"), "{error}");
            assert!(has_room(&dir.path().join(name)).unwrap_err().to_string().contains("no folder"));
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}
