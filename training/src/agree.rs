//! Whether all ranks can begin, and want the same.

use std::path::Path;

use nd_comm::prelude::{Communicator, ReduceOp};

use crate::digest::digest;
use crate::error::{Error, Result};

/// Bytes of a message that are passed on.
const MESSAGE: usize = 1024;

/// What each rank has, if all have it; else the error of the first rank that has not, on all of them. All ranks call this.
///
/// # Errors
/// The rank's own, or [`Error::Config`] with the first one's number and message; of communication.
pub(crate) fn all_well<T>(comm: &Communicator, own: Result<T>) -> Result<T> {
    let mut first = [if own.is_ok() { u64::MAX } else { comm.rank() as u64 }];
    comm.all_reduce(&mut first, ReduceOp::Min)?;
    if first[0] == u64::MAX {
        return own;
    }
    let root = first[0] as usize;
    let text = from(comm, &own.as_ref().err().map_or(String::new(), Error::to_string), root)?;
    match own {
        Err(error) if comm.rank() == root => Err(error),
        _ => Err(Error::Config(if root == 0 { text } else { format!("rank {root}: {text}") })),
    }
}

/// Something that all ranks must have alike.
#[derive(Debug, Clone)]
pub(crate) struct Thing {
    /// Its name, the same on all ranks: `seed`, `model.safetensors`.
    pub name: String,
    /// What it is, for people.
    pub value: String,
    /// What is compared.
    pub key: u64,
}

impl Thing {
    /// A value that is compared by what it says.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Thing {
        let value = value.into();
        Thing { name: name.into(), key: digest(0, value.as_bytes()), value }
    }

    /// A file of so many bytes that is compared by its contents, wherever it is.
    pub fn file(name: impl Into<String>, path: &Path, bytes: u64, contents: u64) -> Thing {
        let value = format!("{}, {bytes} bytes with digest {contents:016x}", path.display());
        Thing { name: name.into(), value, key: digest(contents, &bytes.to_le_bytes()) }
    }
}

/// Compares what each rank has; all ranks call this with things of the same names.
///
/// # Errors
/// [`Error::Config`], the same on all ranks: the first thing that is not the same, which ranks on which hosts have what, and
/// `remedy`.
pub(crate) fn same(comm: &Communicator, things: &[Thing], remedy: &str) -> Result<()> {
    let own: Vec<u64> = things.iter().map(|thing| thing.key).collect();
    let mut all = vec![0; own.len() * comm.world_size()];
    comm.all_gather(&own, &mut all)?;
    let of = |rank: usize, thing: usize| all[rank * own.len() + thing];
    let ranks = || 0..comm.world_size();
    for (i, thing) in things.iter().enumerate() {
        let Some(other) = ranks().find(|&rank| of(rank, i) != of(0, i)) else { continue };
        let hosts = hosts(comm)?;
        let side = |root: usize| {
            let who: Vec<usize> = ranks().filter(|&rank| of(rank, i) == of(root, i)).collect();
            Ok::<_, Error>(format!(
                "{} {} {}",
                having(&who, &hosts),
                thing.name,
                from(comm, &thing.value, root)?
            ))
        };
        let (theirs, ours) = (side(other)?, side(0)?);
        let more = ranks().any(|rank| ![of(0, i), of(other, i)].contains(&of(rank, i)));
        let more = if more { ", and others have others" } else { "" };
        return Err(Error::Config(format!("{theirs}, and {ours}{more}; {remedy}")));
    }
    Ok(())
}

/// As [`same`], of files, which may be others from rank to rank.
pub(crate) fn same_files(comm: &Communicator, files: &[Thing]) -> Result<()> {
    let names: Vec<&str> = files.iter().map(|file| &*file.name).collect();
    let names = match &names[..] {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    same(comm, &[Thing::new("as files to read", names)], "give all ranks the same files")?;
    same(comm, files, "copy one of them to all hosts")
}

/// Bytes of a host's name that are told to others.
const NAME: usize = 64;
/// Ranks, and hosts, that are named one by one.
const NAMED: usize = 8;

/// `rank 0 (node0) has`, `ranks 2 and 3 (node1) have`.
fn having(ranks: &[usize], hosts: &[String]) -> String {
    let mut of: Vec<String> = ranks.iter().map(|&rank| hosts[rank].clone()).collect();
    of.sort_unstable();
    of.dedup();
    let short = |mut all: Vec<String>| {
        let more = all.len() > NAMED;
        all.truncate(NAMED);
        match &*all {
            [first @ .., last] if !more && !first.is_empty() => format!("{} and {last}", first.join(", ")),
            all => format!("{}{}", all.join(", "), if more { ", …" } else { "" }),
        }
    };
    let numbers = short(ranks.iter().map(usize::to_string).collect());
    let (rank, has) = if ranks.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
    format!("{rank} {numbers} ({}) {has}", short(of))
}

/// The name of each rank's host.
fn hosts(comm: &Communicator) -> Result<Vec<String>> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = match name.trim() {
        "" => "host without a name",
        name => &name[..name.floor_char_boundary(NAME)],
    };
    let mut own = [0u8; NAME];
    own[..name.len()].copy_from_slice(name.as_bytes());
    let mut all = vec![0u8; NAME * comm.world_size()];
    comm.all_gather(&own, &mut all)?;
    let text = |name: &[u8]| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    Ok(all.chunks(NAME).map(text).collect())
}

/// A rank's text, at most as long as a message.
fn from(comm: &Communicator, text: &str, root: usize) -> Result<String> {
    let mut message = [b' '; MESSAGE];
    let len = text.floor_char_boundary(MESSAGE);
    message[..len].copy_from_slice(&text.as_bytes()[..len]);
    comm.broadcast(&mut message, root)?;
    Ok(String::from_utf8_lossy(&message).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use nd_tests::worlds::each;

    use super::*;

    #[test]
    fn the_ones_that_differ_are_named_everywhere() {
        let texts = ["a", "a", "b", "b"];
        let said = each(&Communicator::local(4).unwrap(), |comm| {
            let things = [Thing::new("seed", "1"), Thing::new("a text", texts[comm.rank()])];
            same(comm, &things[..1], "").unwrap();
            same(comm, &things, "do so").unwrap_err().to_string()
        });
        assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "{said:?}");
        assert!(said[0].starts_with("ranks 2 and 3 (") && said[0].ends_with("; do so"), "{}", said[0]);
        for part in [") have a text b, and ranks 0 and 1 (", ") have a text a;"] {
            assert!(said[0].contains(part), "{part}: {}", said[0]);
        }
    }

    #[test]
    fn files_are_compared_by_what_is_in_them_wherever_they_are() {
        let said = each(&Communicator::local(3).unwrap(), |comm| {
            let path = format!("/host{}/text", comm.rank());
            let file = |name: &str, contents: &str| {
                Thing::file(name, Path::new(&path), 8, digest(0, contents.as_bytes()))
            };
            let texts = ["the same", "the same", "the sane"];
            let files = [file("tokenizer", "{}"), file("the text", texts[comm.rank()])];
            same_files(comm, &files[..1]).unwrap();
            let few = if comm.rank() == 1 { 1 } else { 2 };
            [&files[..], &files[..few]].map(|files| same_files(comm, files).unwrap_err().to_string())
        });
        for [other, few] in said {
            assert!(
                other.starts_with("rank 2 (") && other.contains(") has the text /host2/text, 8 bytes"),
                "{other}"
            );
            assert!(
                other.contains("ranks 0 and 1 (") && other.contains(") have the text /host0/text, 8 bytes"),
                "{other}"
            );
            assert!(few.contains(") has as files to read tokenizer, and ranks 0 and 2 ("), "{few}");
        }
    }

    #[test]
    fn many_ranks_are_not_listed_one_by_one() {
        let hosts: Vec<String> = (0..40).map(|rank| format!("node{}", rank / 4)).collect();
        assert_eq!(having(&[4], &hosts), "rank 4 (node1) has");
        let all: Vec<usize> = (0..40).collect();
        let nodes: Vec<String> = (0..8).map(|node| format!("node{node}")).collect();
        assert_eq!(
            having(&all, &hosts),
            format!("ranks 0, 1, 2, 3, 4, 5, 6, 7, … ({}, …) have", nodes.join(", "))
        );
    }

    #[test]
    fn what_one_lacks_all_are_told() {
        let said = each(&Communicator::local(3).unwrap(), |comm| {
            let own = if comm.rank() == 1 { Err(Error::Config("é".repeat(2000))) } else { Ok(()) };
            all_well(comm, own).unwrap_err().to_string()
        });
        assert_eq!(said[0], format!("rank 1: {}", "é".repeat(MESSAGE / 2)));
        assert_eq!((said[2].len(), said[1].len()), (said[0].len(), 4000));
        let well = each(&Communicator::local(2).unwrap(), |comm| all_well(comm, Ok(comm.rank())).unwrap());
        assert_eq!(well, [0, 1]);
    }
}
