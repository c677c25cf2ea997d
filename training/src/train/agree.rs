//! Whether all ranks can begin, and want the same.

use nd_comm::prelude::{Communicator, ReduceOp};

use crate::error::{Error, Result};

/// Bytes of a message that are passed on.
const MESSAGE: usize = 1024;

/// What each rank has, if all have it; else the error of the first rank that has not, on all of them. All ranks call this.
///
/// # Errors
/// The rank's own, or [`Error::Config`] with the first one's number and message; of communication.
pub fn all_well<T>(comm: &Communicator, own: Result<T>) -> Result<T> {
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

/// Compares what each rank has, by name and value; all ranks call this with the same names.
///
/// # Errors
/// [`Error::Config`], the same on all ranks, naming the first thing, the first rank that differs from rank 0, and both values.
pub fn same(comm: &Communicator, things: &[(&str, String)]) -> Result<()> {
    let own: Vec<u64> = things.iter().map(|(_, value)| hash(value.bytes())).collect();
    let mut all = vec![0; own.len() * comm.world_size()];
    comm.all_gather(&own, &mut all)?;
    let (first, others) = all.split_at(own.len());
    for (i, (name, value)) in things.iter().enumerate() {
        let Some(other) = others.chunks(own.len()).position(|rank| rank[i] != first[i]) else { continue };
        let other = other + 1;
        let (theirs, ours) = (from(comm, value, other)?, from(comm, value, 0)?);
        return Err(Error::Config(format!(
            "rank {other} has {name} {theirs}, and rank 0 has {ours}; start all ranks with the same settings and files"
        )));
    }
    Ok(())
}

/// A rank's text, at most as long as a message.
fn from(comm: &Communicator, text: &str, root: usize) -> Result<String> {
    let mut message = [b' '; MESSAGE];
    let len = text.floor_char_boundary(MESSAGE);
    message[..len].copy_from_slice(&text.as_bytes()[..len]);
    comm.broadcast(&mut message, root)?;
    Ok(String::from_utf8_lossy(&message).trim_end().to_owned())
}

/// A number that differs where the bytes do (FNV-1a; Fowler, Noll and Vo).
pub fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use nd_tests::worlds::each;

    use super::*;

    #[test]
    fn the_one_that_differs_is_named_everywhere() {
        let texts = ["a", "a", "b"];
        let said = each(&Communicator::local(3).unwrap(), |comm| {
            let things = [("seed", "1".to_owned()), ("a text", texts[comm.rank()].to_owned())];
            same(comm, &things).map_err(|e| e.to_string())
        });
        for error in said {
            assert!(error.unwrap_err().starts_with("rank 2 has a text b, and rank 0 has a;"));
        }
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
