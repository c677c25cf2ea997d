//! How much memory it takes to write a checkpoint, and to make a model of it, in bytes that this thread allocates.

use nd_comm::prelude::Communicator;
use nd_tests::allocator::{Counting, allocated, take_peak};
use nd_training::checkpoint::{Saved, export};
use nd_training::train::{Config, Trainer};

#[global_allocator]
static COUNTING: Counting = Counting;

/// What `f` allocates at most beside what was there.
fn peak<R>(f: impl FnOnce() -> R) -> (usize, R) {
    let before = allocated();
    take_peak();
    let result = f();
    (usize::try_from(take_peak() - before).expect("at least what was there"), result)
}

#[test]
fn a_model_is_exported_tensor_by_tensor_and_a_checkpoint_written_without_a_copy_of_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    for (key, value) in
        [("layers", "16"), ("hidden", "128"), ("seq-len", "16"), ("batch", "1"), ("steps", "1")]
    {
        config.set(key, value).unwrap();
    }
    config.checkpoint = Some(folder.path().join("state"));
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut trainer = Trainer::new(&comm, &config).unwrap();
    trainer.step().unwrap();
    let (of_save, path) = peak(|| trainer.checkpoint().unwrap().unwrap());
    let saved = Saved::find(&path).unwrap();
    let sizes = saved.manifest().tensors.values().map(|tensor| 4 * tensor.shape.iter().product::<usize>());
    let (model, largest) = (sizes.clone().sum::<usize>(), sizes.max().unwrap());
    // A piece of a file, and lists of tensors.
    let beside = 2 << 20;
    println!("{model} bytes of parameters, the largest {largest}; a save takes {of_save}");
    assert!(of_save < beside && 3 * model > 8 * beside, "{of_save} bytes of {}", 3 * model);
    let (of_export, ()) = peak(|| export(&saved, &folder.path().join("model"), config.save_dtype).unwrap());
    println!("an export {of_export}");
    // Of a tensor the elements, and their bytes twice: as read and as written.
    assert!(of_export < 3 * largest + (1 << 20) && of_export < model / 4, "{of_export} bytes of {model}");
}
