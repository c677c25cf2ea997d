//! What one rank does.

use nd_comm::prelude::Communicator;
use nd_training::train::{Config, Trainer};

use super::error::Error;
use super::report::Report;

/// Trains; rank 0 tells.
pub fn rank(comm: &Communicator, config: &Config) -> Result<(), Error> {
    let mut trainer = Trainer::new(comm, config)?;
    let mut report = match comm.rank() {
        0 => Some(Report::begin(config, &mut trainer)?),
        _ => None,
    };
    while !trainer.done() {
        let row = trainer.step().map_err(|error| Error::Step { rank: comm.rank(), error })?;
        if let Some(report) = &mut report {
            report.row(row)?;
        }
        trainer.checkpoint().map_err(Error::checkpoint)?;
    }
    trainer.save()?;
    match report {
        Some(report) => report.finish(&trainer),
        None => Ok(()),
    }
}
