//! Files in the safetensors format: which tensors lie where.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata};
use serde_json::{Map, Value, json};

use crate::digest::digest;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::{files, json};

/// Longest header that is read: that of the format's own library.
const LONGEST_HEADER: u64 = 100_000_000;

/// An open file, and where its tensors lie.
#[derive(Debug)]
pub(crate) struct TensorFile {
    pub file: File,
    /// Of the whole file.
    pub bytes: u64,
    /// Of its header.
    pub digest: u64,
    pub tensors: BTreeMap<String, Placed>,
}

/// Where a tensor lies in its file.
#[derive(Debug)]
pub(crate) struct Placed {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where it begins, and how long it is, in bytes.
    pub start: u64,
    pub bytes: u64,
}

impl TensorFile {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read, is cut, or is no safetensors file.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let error = |problem: String| Error::File { path: path.to_owned(), problem };
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
        let placed = metadata.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let (start, bytes) = (8 + size + start as u64, (end - start) as u64);
            (name, Placed { dtype: info.dtype, shape: info.shape.clone(), start, bytes })
        });
        Ok(TensorFile { file, bytes: length, digest: digest(0, &header), tensors: placed.collect() })
    }
}

/// What a file begins with that has these tensors one after the other: the length of the header, and the header, with names,
/// types, shapes and places, padded so that the tensors lie at multiples of eight bytes.
pub(crate) fn header<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    encoding: Encoding,
) -> Vec<u8> {
    let mut entries = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
    let mut start = 0;
    for (name, shape) in tensors {
        let end = start + shape.iter().product::<usize>() * encoding.bytes();
        entries.insert(
            name.to_owned(),
            json!({ "dtype": encoding.to_string(), "shape": shape, "data_offsets": [start, end] }),
        );
        start = end;
    }
    let mut header = Value::Object(entries).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}
