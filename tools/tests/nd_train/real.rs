//! A published model: what it says of plain English, on one mesh and another, and after it was written and read again.

use std::path::Path;
use std::process::{Command, Stdio};

use nd_tests::models;

use super::{TRAIN, text};

/// English that no model was trained on: enough for two sequences of 96 tokens.
const ENGLISH: &str = "\
The river rises in the hills above the village, where the snow lies until May. In spring the water is cold and fast, \
and the children are told to stay away from the banks. By August it is so low that you can walk across on the stones, \
and the cattle come down in the evening to drink. My grandfather used to say that the river has a memory. He had lived \
beside it all his life, and he knew where it had run when he was a boy, and where his own father had built the first \
bridge. That bridge was made of wood, and a flood took it away in a single night. The second one was made of stone, and \
it is still there. When I was ten years old he took me to see the place where the old mill had been. There was nothing \
left of it but a few walls and a wheel without any teeth. He sat down on one of the walls, lit his pipe, and told me \
how the farmers had come from miles around with their carts full of wheat, and how the miller always took a little \
more for himself than he should have.
";

/// The settings of a run of so many steps on the text: its losses, and that on the text at the end.
fn trained(folder: &Path, settings: &[&str]) -> (Vec<f64>, f64) {
    let data = folder.join("english.txt");
    std::fs::write(&data, ENGLISH).unwrap();
    let mut command = Command::new(TRAIN);
    command.current_dir(folder).stdin(Stdio::null()).arg("--data").arg(&data).arg("--eval-data").arg(&data);
    command.args(["--data-cache", "cache", "--metrics", "m.jsonl", "--seq-len", "96", "--batch", "2"]);
    let output = command.args(settings).output().unwrap();
    assert!(output.status.success(), "{settings:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    let rows = std::fs::read_to_string(folder.join("m.jsonl")).unwrap();
    let rows: Vec<serde_json::Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let losses = rows.iter().map(|row| row["loss"].as_f64().unwrap()).collect();
    (losses, rows.last().unwrap()["eval_loss"].as_f64().unwrap())
}

#[test]
fn a_published_model_is_trained_on_every_mesh_and_saved_as_hugging_face_s() {
    let Some(model) = models::smollm2("nd-train with a published model") else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = model.to_str().unwrap();
    let run = |mesh: &str, more: &[&str]| {
        let settings = [&["--init", model, "--mesh", mesh, "--lr", "1e-5", "--steps", "2"], more].concat();
        trained(folder.path(), &settings)
    };
    // A model that knows nothing has ln(49152) = 10.8.
    let (_, known) = run("dp_shard=1", &["--lr", "0", "--steps", "1"]);
    assert!(known > 1.0 && known < 3.5, "{known}");
    let (one, learnt) = run("dp_shard=1", &[]);
    assert!(learnt < known, "{learnt} after {known}");
    for (mesh, save) in [("dp_shard=2", "two"), ("tp=3", "three")] {
        let (losses, measured) = run(mesh, &["--save", save]);
        let far = losses.iter().zip(&one).any(|(a, b)| (a - b).abs() > 1e-3);
        assert!(!far && measured < known, "{mesh}: {losses:?} and {one:?}, {measured} after {known}");
        // On the mesh that wrote it, what was written has the very loss; nothing is learnt at a rate of 0.
        let again = ["--init", save, "--mesh", mesh, "--lr", "0", "--steps", "1"];
        assert_eq!(trained(folder.path(), &again).1, measured, "{mesh}");
    }
}
