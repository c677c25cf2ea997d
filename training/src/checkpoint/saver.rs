//! Writes checkpoints.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use nd_comm::prelude::{Communicator, Element, ReduceOp};

use super::digested::{self, Contents};
use super::folder::{self, MANIFEST};
use super::manifest::{FileEntry, Manifest, hexadecimal};
use super::share::{Has, share};
use super::{Held, Kind, Saved, file_error};
use crate::agree::all_well;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::tensor_file::header;

/// Elements that are made bytes of at a time.
const CHUNK: usize = 1 << 16;

/// Writes the checkpoints of a run into one folder, and keeps the last ones. All ranks make the same calls.
pub struct Saver {
    folder: PathBuf,
    keep: usize,
    comm: Communicator,
    /// On rank 0, the files that belong to the model.
    beside: Vec<(String, Vec<u8>)>,
    shares: Option<Shares>,
    flying: Option<Flying>,
    _own: Option<File>,
}

/// A checkpoint that is being written.
struct Flying {
    /// Writes this rank's file, unless it could not be started.
    thread: io::Result<JoinHandle<io::Result<Contents>>>,
    manifest: Manifest,
    partial: PathBuf,
}

/// Who has what and who writes it: the same for all checkpoints of a run.
struct Shares {
    /// Of all parameters, in order.
    names: Vec<String>,
    of_ranks: Vec<Vec<Has>>,
    /// By rank, which of what it has it writes.
    written: Vec<Vec<usize>>,
}

impl Saver {
    /// For a folder, which is made if it is not there, and in which the last `keep` whole checkpoints stay. All ranks call
    /// this. Into each checkpoint go the files that belong to the model, such as its tokenizer's, which rank 0 has `beside` it.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::File`] when it cannot be written, another run writes there, or a rank does not see it.
    pub fn open(
        comm: &Communicator,
        folder: &Path,
        keep: usize,
        beside: Vec<(String, Vec<u8>)>,
    ) -> Result<Saver> {
        let own = folder::open(comm, folder)?;
        let (folder, comm) = (folder.to_owned(), comm.clone());
        Ok(Saver { folder, keep, comm, beside, shares: None, flying: None, _own: own })
    }

    /// Refuses to go on after `step`, or to begin where that is none, in a folder that has later checkpoints: they would be
    /// written over.
    ///
    /// # Errors
    /// [`Error::File`] naming the last one, and what is wrong with it where it is not whole.
    pub fn begins_after(&self, step: Option<u64>) -> Result<()> {
        let steps = folder::list(&self.folder).map_err(|e| file_error(&self.folder, e))?.steps;
        let Some((last, path)) = steps.last().filter(|(last, _)| step.is_none_or(|step| *last > step)) else {
            return Ok(());
        };
        let problem = match (Saved::open(path), step) {
            (Err(e), _) => format!("it is no whole checkpoint ({e}); take it away, or name another folder with --checkpoint"),
            (Ok(_), None) => {
                "it is a checkpoint that was not asked for; go on from it with --resume auto, or name another folder with \
                 --checkpoint"
                    .to_owned()
            }
            (Ok(_), Some(step)) => format!(
                "it is a checkpoint of step {last}, and this run goes on from step {step} and would write over it; name another \
                 folder with --checkpoint, or take the later ones away"
            ),
        };
        Err(file_error(path, problem))
    }

    /// Writes a checkpoint: `manifest` without files and tensors, and what this rank holds. When it is there, those before the last
    /// `keep` are removed. One that is still being written is waited for first.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::File`] with what the system says, naming the rank that cannot write; all checkpoints
    /// that were there stay. Of communication.
    pub fn save(&mut self, manifest: Manifest, held: &[Held<'_>]) -> Result<PathBuf> {
        let partial = self.begin(&manifest)?;
        let own: Vec<Tensors<&[f32]>> = self.own(held)?.map(|held| tensors(held, |values| values)).collect();
        let written = write_own(&partial.join(file_name(self.comm.rank())), &own);
        self.end(manifest, &partial, written)
    }

    /// As [`Saver::save`], from a copy of what this rank writes, while the caller goes on: [`Saver::settle`] ends it.
    ///
    /// # Errors
    /// Those of [`Saver::save`] for one that was still being written, and when this one cannot be begun.
    pub fn save_in_background(&mut self, manifest: Manifest, held: &[Held<'_>]) -> Result<()> {
        let partial = self.begin(&manifest)?;
        let own: Vec<Tensors<Vec<f32>>> =
            self.own(held)?.map(|held| tensors(held, <[f32]>::to_vec)).collect();
        let path = partial.join(file_name(self.comm.rank()));
        let write = move || write_own(&path, &own);
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        self.flying = Some(Flying { thread, manifest, partial });
        Ok(())
    }

    /// Ends the checkpoint that is being written, once all ranks have written what is theirs; with `wait` this waits for it. Says
    /// where it is when it is there. All ranks call this.
    ///
    /// # Errors
    /// Those of [`Saver::save`].
    pub fn settle(&mut self, wait: bool) -> Result<Option<PathBuf>> {
        let Some(flying) = &self.flying else { return Ok(None) };
        let done = flying.thread.as_ref().map_or(true, JoinHandle::is_finished);
        let mut ready = [u64::from(wait || done)];
        self.comm.all_reduce(&mut ready, ReduceOp::Min)?;
        match self.flying.take_if(|_| ready == [1]) {
            None => Ok(None),
            Some(Flying { thread, manifest, partial }) => {
                self.end(manifest, &partial, joined(thread)).map(Some)
            }
        }
    }

    /// Makes the folder of a checkpoint, without what others have left.
    fn begin(&mut self, manifest: &Manifest) -> Result<PathBuf> {
        self.settle(true)?;
        let partial = self.folder.join(folder::partial(manifest.step));
        let begun = || {
            for left in folder::list(&self.folder)?.partials {
                std::fs::remove_dir_all(left)?;
            }
            std::fs::create_dir(&partial)
        };
        let begun = if self.comm.rank() == 0 { begun() } else { Ok(()) };
        all_well(&self.comm, begun.map_err(|e| cannot(&partial, &e)))?;
        Ok(partial)
    }

    /// What of that which this rank holds it writes.
    fn own<'h, 'v>(&mut self, held: &'h [Held<'v>]) -> Result<impl Iterator<Item = &'h Held<'v>>> {
        let shares = match self.shares.take() {
            Some(shares) => shares,
            None => Shares::new(&self.comm, held)?,
        };
        let written = self.shares.insert(shares).written[self.comm.rank()].clone();
        Ok(written.into_iter().map(|index| &held[index]))
    }

    /// What follows when this rank has written its file, or could not.
    fn end(&self, manifest: Manifest, partial: &Path, written: io::Result<Contents>) -> Result<PathBuf> {
        let first = self.comm.rank() == 0;
        let ended = self.named(manifest, partial, written);
        match &ended {
            Ok(path) if first => {
                tracing::info!("checkpoint {}", path.display());
                self.remove_old();
            }
            // Where ranks no longer answer some may still write into it.
            Ok(_) | Err(Error::Comm(_)) => {}
            Err(_) if first => drop(std::fs::remove_dir_all(partial)),
            Err(_) => {}
        }
        ended
    }

    fn named(&self, manifest: Manifest, partial: &Path, written: io::Result<Contents>) -> Result<PathBuf> {
        let rank = self.comm.rank();
        let written = written.map_err(|e| cannot(&partial.join(file_name(rank)), &e));
        let Contents { bytes, digest } = all_well(&self.comm, written)?;
        let mut all = vec![[0; 2]; self.comm.world_size()];
        self.comm.all_gather(&[bytes, digest], all.as_flattened_mut())?;
        let target = self.folder.join(folder::name(manifest.step));
        let named = match &self.shares {
            Some(shares) if rank == 0 => finish(manifest, &self.beside, shares, &all, partial, &target),
            _ => Ok(()),
        };
        all_well(&self.comm, named)?;
        Ok(target)
    }

    /// Removes all whole checkpoints but the last ones. One that is being removed is not taken for a whole one.
    fn remove_old(&self) {
        let removed = || {
            let mut whole = folder::list(&self.folder)?.steps;
            whole.retain(|(_, path)| Saved::open(path).is_ok());
            for (step, path) in &whole[..whole.len().saturating_sub(self.keep)] {
                let partial = self.folder.join(folder::partial(*step));
                std::fs::rename(path, &partial)?;
                std::fs::remove_dir_all(&partial)?;
            }
            Ok(())
        };
        if let Err(e) = removed() {
            let e: io::Error = e;
            tracing::warn!("{}: an old checkpoint cannot be removed: {e}", self.folder.display());
        }
    }
}

impl Drop for Saver {
    /// Nobody else waits for the thread. What it has written stays half-written: others may have failed.
    fn drop(&mut self) {
        if let Some(flying) = self.flying.take() {
            let _ = joined(flying.thread);
        }
    }
}

/// What a thread has written.
fn joined(thread: io::Result<JoinHandle<io::Result<Contents>>>) -> io::Result<Contents> {
    thread?.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it has died")))
}

impl Shares {
    fn new(comm: &Communicator, held: &[Held<'_>]) -> Result<Shares> {
        let mut names: Vec<String> = held.iter().map(|held| held.parameter.name.clone()).collect();
        names.sort_unstable();
        // A rank may have nothing of a parameter, so names are counted as all have them.
        let names = together(comm, &names)?;
        let has = |held: &Held<'_>| Has {
            parameter: names.partition_point(|name| *name < held.parameter.name),
            part: held.parameter.part,
            start: held.range.start,
            len: held.range.len(),
            kinds: held.values.len(),
        };
        let own: Vec<u64> = held.iter().flat_map(|held| has(held).to_words()).collect();
        let of_ranks: Vec<Vec<Has>> = gathered(comm, &own)?
            .iter()
            .map(|words| words.as_chunks().0.iter().map(|words| Has::from_words(*words)).collect())
            .collect();
        let written = share(&of_ranks);
        Ok(Shares { names, of_ranks, written })
    }
}

/// The names that any rank has, in order.
fn together(comm: &Communicator, own: &[String]) -> Result<Vec<String>> {
    let bytes = own.join("\n").into_bytes();
    let all = gathered(comm, &bytes)?;
    let mut names: Vec<String> = all
        .iter()
        .flat_map(|bytes| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// What each rank has, however much.
fn gathered<T: Element + Default>(comm: &Communicator, own: &[T]) -> Result<Vec<Vec<T>>> {
    let mut counts = vec![0u64; comm.world_size()];
    comm.all_gather(&[own.len() as u64], &mut counts)?;
    let counts: Vec<usize> = counts.iter().map(|&count| count as usize).collect();
    let mut all = vec![T::default(); counts.iter().sum()];
    comm.all_gather_v(own, &mut all, &counts)?;
    let mut left = &all[..];
    Ok(counts
        .iter()
        .map(|&count| {
            let (own, others) = left.split_at(count);
            left = others;
            own.to_vec()
        })
        .collect())
}

/// The name of a rank's file.
fn file_name(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// A parameter's name, and its tensors by [`Kind::ALL`].
type Tensors<V> = (String, Vec<V>);

fn tensors<'v, V>(held: &Held<'v>, of: impl Fn(&'v [f32]) -> V) -> Tensors<V> {
    (held.parameter.name.clone(), held.values.iter().map(|values| of(values)).collect())
}

/// Writes a rank's file, if it has something to write.
fn write_own<V: AsRef<[f32]>>(path: &Path, own: &[Tensors<V>]) -> io::Result<Contents> {
    if own.is_empty() {
        return Ok(Contents { bytes: 0, digest: 0 });
    }
    let tensors = own.iter().flat_map(|(name, values)| {
        Kind::ALL.iter().zip(values).map(|(kind, values)| (kind.of(name), [values.as_ref().len()]))
    });
    let tensors: Vec<(String, [usize; 1])> = tensors.collect();
    let named = tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice()));
    let mut bytes = Vec::with_capacity(CHUNK * size_of::<f32>());
    digested::write(path, |to| {
        to.add(&header(named, Encoding::F32))?;
        for values in own.iter().flat_map(|(_, all)| all).flat_map(|values| values.as_ref().chunks(CHUNK)) {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            to.add(&bytes)?;
        }
        Ok(())
    })
}

/// Writes what is not any rank's own, the manifest last, and gives the folder its name.
fn finish(
    mut manifest: Manifest,
    beside: &[(String, Vec<u8>)],
    shares: &Shares,
    of_ranks: &[[u64; 2]],
    partial: &Path,
    target: &Path,
) -> Result<()> {
    let mut files = Vec::new();
    let mut file_of_rank = vec![0; of_ranks.len()];
    let entry = |name: String, bytes, digest| FileEntry { name, bytes, digest: hexadecimal(digest) };
    for (rank, &[bytes, digest]) in of_ranks.iter().enumerate().filter(|(_, [bytes, _])| *bytes > 0) {
        file_of_rank[rank] = files.len();
        files.push(entry(file_name(rank), bytes, digest));
    }
    for (rank, written) in shares.written.iter().enumerate() {
        for has in written.iter().map(|&index| &shares.of_ranks[rank][index]) {
            let tensor = manifest.tensors.get_mut(&shares.names[has.parameter]);
            let none =
                || Error::Config(format!("{} is none of the model's tensors", shares.names[has.parameter]));
            tensor.ok_or_else(none)?.pieces.push(has.piece(file_of_rank[rank]));
        }
    }
    let whole = |name: &str, bytes: &[u8]| {
        let path = partial.join(name);
        digested::write(&path, |to| to.add(bytes)).map_err(|e| cannot(&path, &e))
    };
    for (name, bytes) in beside {
        let Contents { bytes, digest } = whole(name, bytes)?;
        files.push(entry(name.clone(), bytes, digest));
        manifest.beside.push(name.clone());
    }
    manifest.files = files;
    let text = manifest.to_text().map_err(|problem| file_error(&partial.join(MANIFEST), problem))?;
    whole(MANIFEST, text.as_bytes())?;
    let named = || {
        folder::sync(partial)?;
        std::fs::rename(partial, target)?;
        folder::sync(target.parent().unwrap_or(Path::new(".")))
    };
    named().map_err(|e| cannot(target, &e))
}

fn cannot(path: &Path, error: &io::Error) -> Error {
    let problem = format!(
        "the checkpoint cannot be written: {error}; those before it are as they were: make room, or name another folder with \
         --checkpoint, and go on from the last one with --resume"
    );
    file_error(path, problem)
}
