//! A model out of a checkpoint, for other programs.

use std::path::Path;

use candle_core::DType;

use super::folder::MANIFEST;
use super::{Kind, Saved, file_error};
use crate::error::Result;
use crate::llama::Config;
use crate::llama::weights::{Format, has_room, save};

/// Writes the model of a checkpoint into a folder as Hugging Face lays it out, in f32, bf16 or f16, with its tokenizer. One
/// tensor is in memory at a time.
///
/// # Errors
/// [`Error::File`](crate::Error::File) when the folder has a model already or cannot be written, or the checkpoint cannot be read.
pub fn export(saved: &Saved, to: &Path, dtype: DType) -> Result<()> {
    has_room(to)?;
    let manifest = saved.manifest();
    let text = serde_json::Value::Object(manifest.model.clone()).to_string();
    let config = Config::from_json(&text).map_err(|e| file_error(&saved.folder().join(MANIFEST), e))?;
    let read = |name: &String| {
        let path = saved.folder().join(name);
        let bytes = std::fs::read(&path).map_err(|e| file_error(&path, format!("cannot be read: {e}")))?;
        Ok((name.clone(), bytes))
    };
    let beside = manifest.beside.iter().map(read).collect::<Result<Vec<_>>>()?;
    let format = Format { beside, ..dtype.into() };
    save(to, &config, &format, &mut |parameter, out| saved.fill(Kind::Master, parameter, 0..out.len(), out))
}
