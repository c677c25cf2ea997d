//! What is wrong with the checkpoints that are there.

use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;

use super::digested::Contents;
use super::folder::{self, MANIFEST};
use super::manifest::{FileEntry, number};
use super::{Kind, Saved, file_error};
use crate::error::{Error, Result};
use crate::mesh::Mesh;

/// A checkpoint, or what is left of one.
#[derive(Debug)]
pub struct Found {
    /// Its folder.
    pub path: PathBuf,
    /// What it is.
    pub state: State,
}

/// What a folder is.
#[derive(Debug)]
pub enum State {
    /// A whole checkpoint, of which every byte was read.
    Whole {
        /// Steps that were made.
        step: u64,
        /// The mesh that wrote it.
        mesh: Mesh,
        /// Files, and bytes of all of them.
        files: usize,
        /// See `files`.
        bytes: u64,
    },
    /// One that was not finished, or not removed: the next save takes it away.
    Partial,
    /// None, or one that is damaged: what is wrong.
    Damaged(Error),
}

/// Looks at every byte of a checkpoint, or of all in a folder of checkpoints.
///
/// # Errors
/// [`Error::File`] when the folder cannot be read or has none.
pub fn verify(path: &Path) -> Result<Vec<Found>> {
    let name = path.canonicalize().map_err(|e| file_error(path, format!("cannot be read: {e}")))?;
    let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if path.join(MANIFEST).exists() || folder::step_of(name).is_some() || folder::is_partial(name) {
        return Ok(vec![look(path, name)]);
    }
    let folder::Listed { steps, partials } =
        folder::list(path).map_err(|e| file_error(path, format!("cannot be read: {e}")))?;
    let all: Vec<PathBuf> = steps.into_iter().map(|(_, path)| path).chain(partials).collect();
    if all.is_empty() {
        return Err(file_error(path, "no checkpoint is in it; name a checkpoint or a folder of some"));
    }
    let one =
        |path: PathBuf| look(&path, path.file_name().and_then(|name| name.to_str()).unwrap_or_default());
    Ok(all.into_iter().map(one).collect())
}

fn look(path: &Path, name: &str) -> Found {
    let state = match folder::is_partial(name) {
        true => State::Partial,
        false => whole(path).unwrap_or_else(State::Damaged),
    };
    Found { path: path.to_owned(), state }
}

fn whole(path: &Path) -> Result<State> {
    let saved = Saved::open(path)?;
    let manifest = saved.manifest();
    for FileEntry { name, bytes, digest } in &manifest.files {
        let path = path.join(name);
        let found = Contents::of(&path).map_err(|e| file_error(&path, format!("cannot be read: {e}")))?;
        if (found.bytes, Some(found.digest)) != (*bytes, number(digest)) {
            let problem =
                format!("its digest is {:016x} and should be {digest}: it was changed", found.digest);
            return Err(file_error(&path, problem));
        }
    }
    for (name, tensor) in &manifest.tensors {
        let kinds = if tensor.frozen { &Kind::ALL[..1] } else { &Kind::ALL };
        for (piece, kind) in
            tensor.pieces.iter().flat_map(|piece| kinds.iter().map(move |kind| (piece, kind)))
        {
            let placed = saved.file(piece.file)?.tensors.get(&kind.of(name));
            if placed.is_none_or(|placed| placed.dtype != Dtype::F32 || placed.shape != [piece.len]) {
                let (path, name) = (path.join(&manifest.files[piece.file].name), kind.of(name));
                return Err(file_error(
                    &path,
                    format!("it has no {name} of f32 with {} elements", piece.len),
                ));
            }
        }
    }
    let mesh = manifest.mesh().map_err(|problem| file_error(path, problem))?;
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    Ok(State::Whole { step: manifest.step, mesh, files: manifest.files.len(), bytes })
}
