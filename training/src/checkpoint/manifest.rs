//! What a checkpoint says of itself: `manifest.json`. *Pure.*

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json;
use crate::mesh::{Axis, Mesh};
use crate::model::Part;

/// What the manifests of this program have under `format` and `version`.
pub const FORMAT: &str = "nd-train checkpoint";
/// See [`FORMAT`].
pub const VERSION: u64 = 1;

/// The state of a run after a step, but for the numbers that lie in the other files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u64,
    /// Steps that were made.
    pub step: u64,
    /// The mesh that wrote it: ranks along each axis.
    pub mesh: BTreeMap<String, usize>,
    /// Every setting of the run that may change what is learnt, by its flag.
    pub settings: BTreeMap<String, String>,
    /// The model, as `config.json` has it.
    pub model: Map<String, Value>,
    /// The optimizer beside its tensors.
    pub optimizer: Optimizer,
    /// Of f16.
    pub loss_scale: Option<LossScale>,
    /// Where the run was in its text.
    pub data: Data,
    /// What random numbers follow from.
    pub random: Random,
    /// Files that belong to the model besides, such as its tokenizer's; they are among `files`.
    pub beside: Vec<String>,
    /// All files but this one.
    pub files: Vec<FileEntry>,
    /// All parameters, by name.
    pub tensors: BTreeMap<String, TensorEntry>,
}

/// The optimizer beside its tensors and settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// `adamw`.
    pub name: String,
    /// Updates that were made: steps, but for those that were skipped.
    pub updates: u64,
}

/// The loss scale under f16.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// A power of two.
    pub scale: f64,
    /// Steps since it last changed.
    pub good: u32,
}

/// Where a run was in its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Sequences of a step.
    pub batch: u64,
    /// Tokens of the text.
    pub tokens: u64,
    /// Epochs that are over.
    pub epoch: u64,
    /// Sequences of the next one that were dealt out.
    pub offset: u64,
    /// What was read.
    pub files: Vec<Text>,
}

/// A text, or what makes tokens of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// The flag that named it.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Of its contents, in hexadecimal digits.
    pub digest: String,
}

/// What random numbers follow from: they are drawn by this and a counter, which is the parameter's name and the element's place
/// for first values, and the number of the sequence and the position for dropout, so there is no other state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Random {
    /// The seed.
    pub seed: u64,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name, in the folder of the manifest.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Of its contents, in hexadecimal digits.
    pub digest: String,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Shape of the whole.
    pub shape: Vec<usize>,
    /// Whether the optimizer leaves it as it is, so that there are no means of it.
    pub frozen: bool,
    /// Where its elements are: each in one piece.
    pub pieces: Vec<Piece>,
}

/// Elements of a parameter that lie in one file, flat and in order, under the parameter's name with the kind before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Which of the files.
    pub file: usize,
    /// The part of the parameter along one dimension that the piece is cut from; none for the whole.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "part")]
    pub part: Option<Part>,
    /// Where it begins in that part, flattened, elements.
    pub start: usize,
    /// Elements.
    pub len: usize,
}

/// A [`Part`] as `{"dim": 0, "start": 32, "len": 32}`.
mod part {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::model::Part;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Entry {
        dim: usize,
        start: usize,
        len: usize,
    }

    pub fn serialize<S: Serializer>(part: &Option<Part>, to: S) -> Result<S::Ok, S::Error> {
        part.map(|Part { dim, start, len }| Entry { dim, start, len }).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Part>, D::Error> {
        let entry = Option::<Entry>::deserialize(from)?;
        Ok(entry.map(|Entry { dim, start, len }| Part { dim, start, len }))
    }
}

impl Manifest {
    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// One sentence: what is wrong with it, with the numbers.
    pub fn parse(text: &[u8]) -> Result<Manifest, String> {
        /// What is looked at first.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u64,
        }
        json::check(text).map_err(|e| format!("it is no manifest of a checkpoint: {e}"))?;
        let head: Head = serde_json::from_slice(text)
            .map_err(|_| format!("it does not say \"format\": \"{FORMAT}\" and a \"version\""))?;
        if head.format != FORMAT {
            return Err(format!("it is of the format {:?} and not of {FORMAT:?}", head.format));
        }
        if head.version != VERSION {
            return Err(format!("it is of version {}, and this program reads {VERSION}", head.version));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The text.
    ///
    /// # Errors
    /// As [`Manifest::parse`]: nothing is written that could not be read.
    pub fn to_text(&self) -> Result<String, String> {
        self.check()?;
        serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(|e| e.to_string())
    }

    /// The mesh that wrote it.
    ///
    /// # Errors
    /// What is wrong with its sizes.
    pub fn mesh(&self) -> Result<Mesh, String> {
        let sizes = Axis::ALL.map(|axis| self.mesh.get(axis.name()).copied());
        match sizes {
            [Some(replicate), Some(shard), Some(cp), Some(tp)] if self.mesh.len() == sizes.len() => {
                Mesh::new([replicate, shard, cp, tp]).map_err(|e| e.to_string())
            }
            _ => Err("its mesh has other axes than dp_replicate, dp_shard, cp and tp".into()),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.mesh()?;
        if let Some(LossScale { scale, .. }) = self.loss_scale.filter(|of| !(1.0..=1e30).contains(&of.scale))
        {
            return Err(format!("its loss scale is {scale}, and one is at least 1"));
        }
        if self.optimizer.updates > self.step {
            return Err(format!("{} updates were made in {} steps", self.optimizer.updates, self.step));
        }
        let mut names = BTreeSet::new();
        for FileEntry { name, digest, .. } in &self.files {
            let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
            if !plain || name == super::folder::MANIFEST {
                return Err(format!("{name:?} is no name of a file beside it"));
            }
            if !names.insert(name.as_str()) {
                return Err(format!("the file {name} is there twice"));
            }
            number(digest)
                .ok_or_else(|| format!("the digest of {name} is {digest:?} and no hexadecimal number"))?;
        }
        if let Some(missing) = self.beside.iter().find(|name| !names.contains(name.as_str())) {
            return Err(format!("{missing:?} is beside the model and none of the files"));
        }
        for (name, tensor) in &self.tensors {
            tensor.check(self.files.len()).map_err(|problem| format!("{name}: {problem}"))?;
        }
        Ok(())
    }
}

impl TensorEntry {
    /// Whether each element is in one piece.
    fn check(&self, files: usize) -> Result<(), String> {
        let whole = self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let whole = whole.filter(|&whole| whole > 0 && whole <= isize::MAX as usize / size_of::<f32>());
        let whole = whole.ok_or_else(|| format!("a tensor of shape {:?} cannot be", self.shape))?;
        if let Some(piece) = self.pieces.iter().find(|piece| piece.file >= files) {
            return Err(format!("a piece is in file {}, and there are {files}", piece.file));
        }
        let parts = self.parts();
        // Parts follow each other along their dimension, and pieces in them.
        let first = parts.first().map(|(part, _)| *part).ok_or("it has no pieces")?;
        let (dim, end) = match first {
            None => (None, 1),
            Some(part) => {
                let size = self.shape.get(part.dim);
                (Some(part.dim), *size.ok_or_else(|| format!("it has no dimension {}", part.dim))?)
            }
        };
        let mut next = 0;
        for (part, pieces) in &parts {
            let (start, len) = part.map_or((0, 1), |part| (part.start, part.len));
            if part.map(|part| part.dim) != dim || start != next || len == 0 || len > end - next {
                return Err(match dim {
                    None => "some pieces are cut from the whole and some from parts".to_owned(),
                    Some(dim) => {
                        format!("its parts do not follow each other along dimension {dim} from 0 to {end}")
                    }
                });
            }
            next += len;
            let elements = whole / end * len;
            let mut at = 0;
            for piece in pieces {
                if piece.start != at || piece.len == 0 || piece.len > elements - at {
                    return Err(format!(
                        "its pieces do not follow each other from element 0 to {elements} of a part"
                    ));
                }
                at += piece.len;
            }
            if at != elements {
                return Err(format!("elements {at} to {elements} of a part are in no piece"));
            }
        }
        match next == end {
            true => Ok(()),
            false => Err(format!("what lies from {next} to {end} along a dimension is in no piece")),
        }
    }

    /// The pieces of each part in order, and the parts in theirs.
    pub(super) fn parts(&self) -> Vec<(Option<Part>, Vec<&Piece>)> {
        let mut parts: BTreeMap<_, Vec<&Piece>> = BTreeMap::new();
        for piece in &self.pieces {
            parts.entry(piece.part.map(|part| (part.dim, part.start, part.len))).or_default().push(piece);
        }
        let sorted = parts.into_values().map(|mut pieces| {
            pieces.sort_by_key(|piece| piece.start);
            (pieces[0].part, pieces)
        });
        sorted.collect()
    }
}

/// As digests are written.
pub(crate) fn hexadecimal(digest: u64) -> String {
    format!("{digest:016x}")
}

/// A digest that was written so.
pub(super) fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of one tensor of 4 × 6 in two files.
    pub fn small() -> Manifest {
        let piece = |file, start| Piece { file, part: None, start, len: 12 };
        let file = |rank: usize| FileEntry {
            name: format!("rank-{rank:05}.safetensors"),
            bytes: 100,
            digest: hexadecimal(rank as u64),
        };
        Manifest {
            format: FORMAT.into(),
            version: VERSION,
            step: 120,
            mesh: Axis::ALL.map(|axis| (axis.name().to_owned(), 1)).into(),
            settings: BTreeMap::from([("lr".into(), "1e-3".into())]),
            model: Map::new(),
            optimizer: Optimizer { name: "adamw".into(), updates: 119 },
            loss_scale: Some(LossScale { scale: 32768.0, good: 3 }),
            data: Data { batch: 8, tokens: 1000, epoch: 1, offset: 16, files: Vec::new() },
            random: Random { seed: 5 },
            beside: vec!["rank-00001.safetensors".into()],
            files: vec![file(0), file(1)],
            tensors: BTreeMap::from([(
                "w".into(),
                TensorEntry { shape: vec![4, 6], frozen: false, pieces: vec![piece(1, 12), piece(0, 0)] },
            )]),
        }
    }

    fn said(change: impl FnOnce(&mut Manifest)) -> String {
        let mut manifest = small();
        change(&mut manifest);
        let text = serde_json::to_vec(&manifest).unwrap();
        let problem = Manifest::parse(&text).unwrap_err();
        assert_eq!(manifest.to_text(), Err(problem.clone()));
        problem
    }

    #[test]
    fn what_was_written_is_read_and_what_contradicts_itself_is_refused() {
        let text = small().to_text().unwrap();
        assert_eq!(Manifest::parse(text.as_bytes()), Ok(small()));
        let part = |start, len| Some(Part { dim: 1, start, len });
        let w = |manifest: &mut Manifest| manifest.tensors.remove("w").unwrap();
        let with = |pieces: Vec<Piece>| {
            said(|manifest| {
                let entry = TensorEntry { pieces, ..w(manifest) };
                manifest.tensors.insert("w".into(), entry);
            })
        };
        let piece = |part, start, len| Piece { file: 0, part, start, len };
        assert_eq!(with(vec![]), "w: it has no pieces");
        assert_eq!(with(vec![piece(None, 0, 23)]), "w: elements 23 to 24 of a part are in no piece");
        assert_eq!(
            with(vec![piece(None, 0, 13), piece(None, 12, 12)]),
            "w: its pieces do not follow each other from element 0 to 24 of a part"
        );
        assert!(with(vec![piece(None, 0, usize::MAX)]).contains("do not follow"));
        assert!(with(vec![piece(part(0, 2), 0, 8)]).contains("from 2 to 6 along a dimension is in no piece"));
        assert!(
            with(vec![piece(part(0, 2), 0, 8), piece(part(3, 3), 0, 12)])
                .contains("along dimension 1 from 0 to 6")
        );
        assert!(with(vec![piece(part(0, 6), 0, 24), piece(None, 0, 24)]).contains("some from parts"));
        assert!(with(vec![piece(part(0, usize::MAX), 0, 1)]).contains("along dimension 1"));
        assert!(with(vec![piece(Some(Part { dim: 2, start: 0, len: 1 }), 0, 1)]).contains("no dimension 2"));
        assert_eq!(
            with(vec![Piece { file: 2, ..piece(None, 0, 24) }]),
            "w: a piece is in file 2, and there are 2"
        );
        for shape in [vec![0, 3], vec![usize::MAX, 2], vec![usize::MAX / 3]] {
            let problem = said(|manifest| {
                let entry = TensorEntry { shape, ..w(manifest) };
                manifest.tensors.insert("w".into(), entry);
            });
            assert!(problem.contains("cannot be"), "{problem}");
        }
        assert!(said(|m| m.files[1].name = "rank-00000.safetensors".into()).contains("twice"));
        for name in ["../a", "", ".hidden", "manifest.json", "a/b"] {
            assert!(said(|m| m.files[1].name = name.into()).contains("no name of a file beside it"));
        }
        assert!(said(|m| m.files[0].digest = "12".into()).contains("no hexadecimal number"));
        assert!(said(|m| m.beside[0] = "x".into()).contains("none of the files"));
        assert!(said(|m| m.mesh.clear()).contains("other axes"));
        assert!(said(|m| *m.mesh.get_mut("tp").unwrap() = 0).contains("tp=0"));
        assert!(said(|m| m.loss_scale.as_mut().unwrap().scale = 0.0).contains("loss scale"));
        let parsed =
            |manifest: Manifest| Manifest::parse(&serde_json::to_vec(&manifest).unwrap()).unwrap_err();
        assert_eq!(
            parsed(Manifest { version: 2, ..small() }),
            "it is of version 2, and this program reads 1"
        );
        assert!(parsed(Manifest { format: "other".into(), ..small() }).contains("format \"other\""));
    }

    #[test]
    fn foreign_texts_are_one_sentence() {
        for text in ["", "[]", "{}", "{\"format\": 1}", "\u{0}", "nothing", "{\"a\": 1, \"a\": 2}"] {
            let problem = Manifest::parse(text.as_bytes()).unwrap_err();
            assert!(problem.starts_with("it ") && !problem.contains('\n'), "{text}: {problem}");
        }
        assert!(Manifest::parse(&b"[".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_cut_or_changed_is_read_or_refused_and_nothing_else(
            at in any::<prop::sample::Index>(), with in prop::collection::vec(any::<u8>(), 0..4), cut in 0usize..6,
        ) {
            let mut text = small().to_text().unwrap().into_bytes();
            let at = at.index(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, with);
            if let Ok(manifest) = Manifest::parse(&text) {
                prop_assert!(manifest.to_text().is_ok());
            }
        }
    }
}
