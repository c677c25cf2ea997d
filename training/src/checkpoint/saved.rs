//! Reads a checkpoint.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;

use super::folder::{self, MANIFEST};
use super::manifest::{FileEntry, Manifest};
use super::{Kind, file_error, plan};
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::files;
use crate::model::Parameter;
use crate::tensor_file::TensorFile;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// The longest manifest that is read.
const LONGEST: u64 = 1 << 30;

/// A checkpoint that is whole: its manifest can be read, and its files are there with their lengths. What is in them is not
/// looked at until it is asked for, and then only there.
#[derive(Debug)]
pub struct Saved {
    folder: PathBuf,
    manifest: Manifest,
    files: Vec<OnceCell<TensorFile>>,
    read: Cell<u64>,
}

impl Saved {
    /// The checkpoint in a folder.
    ///
    /// # Errors
    /// [`Error::File`] for a folder that is none, another format or version, and the first file that is missing or cut.
    pub fn open(folder: &Path) -> Result<Saved> {
        let path = folder.join(MANIFEST);
        if !path.exists() {
            return Err(file_error(
                folder,
                format!("it is no checkpoint: it has no {MANIFEST}; check --resume"),
            ));
        }
        let text = files::regular(&path).and_then(|()| {
            let bytes = path.metadata()?.len();
            if bytes > LONGEST {
                return Err(std::io::Error::other(format!(
                    "it has {bytes} bytes, and no manifest is longer than {LONGEST}"
                )));
            }
            std::fs::read(&path)
        });
        let text = text.map_err(|e| file_error(&path, format!("cannot be read: {e}")))?;
        let manifest = Manifest::parse(&text).map_err(|problem| file_error(&path, problem))?;
        for FileEntry { name, bytes, .. } in &manifest.files {
            let path = folder.join(name);
            let found = files::regular(&path).and_then(|()| path.metadata());
            let found = found.map_err(|e| file_error(&path, format!("cannot be read: {e}")))?.len();
            if found != *bytes {
                let what = if found < *bytes { "truncated" } else { "another file" };
                return Err(file_error(
                    &path,
                    format!("it has {found} bytes and should have {bytes}: it is {what}"),
                ));
            }
        }
        let files = manifest.files.iter().map(|_| OnceCell::new()).collect();
        Ok(Saved { folder: folder.to_owned(), manifest, files, read: Cell::new(0) })
    }

    /// The checkpoint in a folder, or the last whole one of a folder of checkpoints.
    ///
    /// # Errors
    /// [`Error::File`] when there is none, with what is wrong with the last that is there.
    pub fn find(path: &Path) -> Result<Saved> {
        if path.join(MANIFEST).exists() {
            return Saved::open(path);
        }
        let none = || file_error(path, "no checkpoint is in it; check --resume");
        Saved::last(path)?.ok_or_else(none)
    }

    /// The last whole one of a folder of checkpoints, if it has any.
    ///
    /// # Errors
    /// [`Error::File`] when none of those that are there is whole, with what is wrong with the last.
    pub fn last(path: &Path) -> Result<Option<Saved>> {
        let listed = folder::list(path)
            .map_err(|e| file_error(path, format!("cannot be read: {e}; check --resume")))?;
        let mut problem = None;
        for (_, path) in listed.steps.iter().rev() {
            match Saved::open(path) {
                Ok(saved) => {
                    if let Some(problem) = problem {
                        tracing::warn!("{problem}; going on from {}", path.display());
                    }
                    return Ok(Some(saved));
                }
                Err(e) => {
                    problem.get_or_insert(e);
                }
            }
        }
        problem.map_or(Ok(None), Err)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes of tensors that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read.get()
    }

    /// Elements `range` of this rank's part of a parameter, or of a mean of its gradients, flattened, into `out`. Nothing else
    /// of the files is read, but for their headers.
    ///
    /// # Errors
    /// [`Error::File`] when the tensor is not there, has another shape, or cannot be read.
    pub fn fill(
        &self,
        kind: Kind,
        parameter: &Parameter,
        range: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let (name, shape) = (&parameter.name, &parameter.shape);
        let refused = |problem: String| Err(file_error(&self.folder.join(MANIFEST), problem));
        let Some(entry) = self.manifest.tensors.get(name) else {
            return refused(format!("{name} is missing"));
        };
        if entry.shape != *shape {
            return refused(format!("{name} is {:?} and should be {shape:?}", entry.shape));
        }
        if range.end > parameter.len() || range.len() != out.len() {
            let (len, places) = (parameter.len(), out.len());
            return Err(Error::Config(format!("{name}: elements {range:?} of {len} into {places} places")));
        }
        let tensor = kind.of(name);
        let mut bytes = Vec::new();
        for read in plan::reads(entry, parameter, range) {
            let path = || self.folder.join(&self.manifest.files[read.file].name);
            let file = self.file(read.file)?;
            let placed = file.tensors.get(&tensor).filter(|placed| {
                placed.dtype == Dtype::F32 && placed.bytes >= (read.from.end * size_of::<f32>()) as u64
            });
            let Some(placed) = placed else {
                return Err(file_error(
                    &path(),
                    format!("it has no {tensor} of f32 with {} elements", read.from.end),
                ));
            };
            let mut at = placed.start + (read.from.start * size_of::<f32>()) as u64;
            for out in out[read.to.clone()].chunks_mut(PIECE / size_of::<f32>()) {
                bytes.resize(size_of_val(out), 0);
                let found = file.file.read_exact_at(&mut bytes, at);
                found.map_err(|e| file_error(&path(), format!("cannot be read: {e}")))?;
                Encoding::F32.decode(&bytes, out)?;
                at += bytes.len() as u64;
                self.read.set(self.read.get() + bytes.len() as u64);
            }
        }
        Ok(())
    }

    /// A file, which is opened when it is first asked for.
    pub(super) fn file(&self, index: usize) -> Result<&TensorFile> {
        let cell = &self.files[index];
        if let Some(file) = cell.get() {
            return Ok(file);
        }
        let file = TensorFile::open(&self.folder.join(&self.manifest.files[index].name))?;
        Ok(cell.get_or_init(|| file))
    }
}
