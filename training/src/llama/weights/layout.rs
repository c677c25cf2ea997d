//! Which files of a directory hold a model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checkpoint::file_error;
use crate::error::Result;

/// How Hugging Face's libraries write a model.
#[derive(Debug, PartialEq)]
pub(super) enum Layout {
    /// As this file says.
    Index(PathBuf),
    /// `model.safetensors`, or `model-00001-of-00003.safetensors` to `model-00003-of-00003.safetensors`.
    Files(Vec<PathBuf>),
    /// Nothing is there.
    None,
}

impl Layout {
    /// Of a directory.
    pub fn find(dir: &Path) -> Result<Layout> {
        let index = dir.join("model.safetensors.index.json");
        if index.exists() {
            return Ok(Layout::Index(index));
        }
        let entries = std::fs::read_dir(dir).map_err(|e| file_error(dir, e))?;
        let mut all: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        all.sort_unstable();
        let names: Vec<&String> = all.iter().filter(|name| name.ends_with(".safetensors")).collect();
        if names.iter().any(|name| *name == "model.safetensors") {
            return Ok(Layout::Files(vec![dir.join("model.safetensors")]));
        }
        let Some(first) = names.first() else {
            return match all.iter().find(|name| are_weights(name)) {
                None => Ok(Layout::None),
                Some(other) => Err(file_error(
                    dir,
                    format!(
                        "{other} is no safetensors file, and there is none: write the model in that format (in transformers \
                         by save_pretrained), or take {other} away to begin with random weights"
                    ),
                )),
            };
        };
        let numbered: BTreeMap<usize, (usize, &String)> = names.iter().copied().filter_map(number).collect();
        let Some((_, &(of, _))) = numbered.first_key_value() else {
            let problem = format!(
                "{first} is neither model.safetensors nor a numbered part of a model, and no \
                 model.safetensors.index.json says what it is; rename it, or take it away to begin with random weights"
            );
            return Err(file_error(dir, problem));
        };
        let part = |i: usize| numbered.get(&i).filter(|part| part.0 == of);
        if let Some(missing) = (1..=of).find(|i| part(*i).is_none()) {
            let problem = format!(
                "part {missing} of {of} is missing, model-{missing:05}-of-{of:05}.safetensors; copy it, or take the others away \
                 to begin with random weights"
            );
            return Err(file_error(dir, problem));
        }
        Ok(Layout::Files((1..=of).filter_map(part).map(|part| dir.join(part.1)).collect()))
    }
}

/// Whether a name is one that other formats give to a model's weights: PyTorch's, TensorFlow's, Flax's, llama.cpp's.
fn are_weights(name: &str) -> bool {
    let Some((stem, extension)) = name.rsplit_once('.') else { return false };
    match extension {
        "gguf" | "h5" | "msgpack" | "ckpt" => true,
        // A trainer's own state has such names too.
        "bin" | "pt" | "pth" => {
            ["pytorch_model", "model", "consolidated"].iter().any(|s| stem.starts_with(s))
        }
        _ => false,
    }
}

/// Which part of how many a name says that a file is.
fn number(name: &String) -> Option<(usize, (usize, &String))> {
    let (part, of) = name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    let (part, of): (usize, usize) = (part.parse().ok()?, of.parse().ok()?);
    (1..=of).contains(&part).then_some((part, (of, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        names.iter().for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        match Layout::find(dir.path()) {
            Ok(Layout::Index(path)) => Ok(vec![name(&path)]),
            Ok(Layout::Files(files)) => Ok(files.iter().map(name).collect()),
            Ok(Layout::None) => Ok(Vec::new()),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn numbered_parts_need_no_index_and_all_are_there() {
        let parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(found(&[parts[1], parts[0], "config.json"]).unwrap(), parts);
        assert_eq!(found(&[parts[0], "model.safetensors"]).unwrap(), ["model.safetensors"]);
        assert_eq!(found(&["config.json"]).unwrap(), [""; 0]);
        let error = found(&parts[1..]).unwrap_err();
        assert!(error.contains("part 1 of 2 is missing, model-00001-of-00002.safetensors"), "{error}");
        for name in
            ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "tf_model.h5"]
        {
            let error = found(&["config.json", "training_args.bin", name]).unwrap_err();
            assert!(error.contains(&format!("{name} is no safetensors file")), "{error}");
            assert_eq!(found(&[name, "model.safetensors"]).unwrap(), ["model.safetensors"]);
        }
        assert_eq!(found(&["training_args.bin", "optimizer.pt", "model.onnx", "README"]).unwrap(), [""; 0]);
        let error = found(&["weights.safetensors"]).unwrap_err();
        assert!(error.contains("weights.safetensors is neither model.safetensors"), "{error}");
    }
}
