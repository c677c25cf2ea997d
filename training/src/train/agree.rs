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
    let mut message = [b' '; MESSAGE];
    if let (true, Err(error)) = (comm.rank() == root, &own) {
        let text = error.to_string();
        let len = text.floor_char_boundary(MESSAGE);
        message[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
    comm.broadcast(&mut message, root)?;
    match own {
        Err(error) if comm.rank() == root => Err(error),
        _ => {
            let text = String::from_utf8_lossy(&message).trim_end().to_owned();
            Err(Error::Config(if root == 0 { text } else { format!("rank {root}: {text}") }))
        }
    }
}

/// Compares what each rank has, by name and a number; all ranks call this with the same names.
///
/// # Errors
/// [`Error::Config`], the same on all ranks, naming the first thing and the first rank that differs from rank 0.
pub fn same(comm: &Communicator, things: &[(&str, u64)]) -> Result<()> {
    let own: Vec<u64> = things.iter().map(|(_, hash)| *hash).collect();
    let mut all = vec![0; own.len() * comm.world_size()];
    comm.all_gather(&own, &mut all)?;
    let (first, others) = all.split_at(own.len());
    for (i, (name, _)) in things.iter().enumerate() {
        let differs = others.chunks(own.len()).position(|rank| rank[i] != first[i]);
        if let Some(rank) = differs {
            return Err(Error::Config(format!(
                "rank {} has another {name} than rank 0; start all ranks with the same settings and files",
                rank + 1
            )));
        }
    }
    Ok(())
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
            let text = hash(texts[comm.rank()].bytes());
            same(comm, &[("seed", 1), ("text", text)]).map_err(|e| e.to_string())
        });
        for error in said {
            assert!(error.unwrap_err().starts_with("rank 2 has another text than rank 0"));
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
