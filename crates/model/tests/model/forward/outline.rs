//! Models without weights: what follows from a specification is what checkpoints have.

use std::collections::{BTreeMap, BTreeSet};

use sws_format::{Manifest, PieceId, Placement, open_checkpoint};
use sws_kernels::Encoding;
use sws_model::{Inventory, ModelSpec};
use sws_testing::goldens::golden_dir;

use crate::forward::support::variants;

/// Shapes of the tensors of each piece of the computation.
fn shapes(manifest: &Manifest, inventory: &Inventory) -> BTreeMap<PieceId, Vec<Vec<u64>>> {
    let needed = manifest.pieces.iter().filter(|piece| !inventory.piece(piece.id).is_empty());
    let shapes = needed.map(|piece| {
        let held = inventory.piece(piece.id).iter();
        let mut shapes: Vec<_> =
            held.map(|held| vec![held.rows as u64, held.cols as u64]).collect();
        shapes.sort();
        (piece.id, shapes)
    });
    shapes.collect()
}

#[test]
fn every_golden_has_the_tensors_of_its_outline() {
    for name in variants() {
        let checkpoint = open_checkpoint(golden_dir(&name), None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let mut manifest = Manifest::in_place(&*checkpoint, &*naming).unwrap();
        let spec = ModelSpec::of(checkpoint.config()).unwrap().for_weights(&manifest);
        // As shards would have them: transposed matrices in order.
        manifest.encoding = Some(Encoding::Bf16);
        let found = shapes(&manifest, &Inventory::new(&spec, &manifest).unwrap());
        let outline = spec.outline(|_| Encoding::Bf16).unwrap();
        assert_eq!(found, shapes(&outline, &Inventory::new(&spec, &outline).unwrap()), "{name}");

        let tensors = outline.pieces.iter().flat_map(|piece| &piece.tensors);
        let weights = tensors.filter(|tensor| tensor.encoding.is_some());
        let weights: u64 = weights.flat_map(|tensor| &tensor.parts).map(|part| part.len / 2).sum();
        assert_eq!(spec.parameters()[0], weights, "{name}");
        assert!(spec.parameters()[1] <= weights, "{name}");
    }
}

/// Layouts of experts: one by one, in groups, stacked and transposed.
#[test]
fn hub_tensors_are_those_of_published_checkpoints() {
    for name in [
        "mixtral",
        "qwen2_moe",
        "olmoe",
        "deepseek_v3",
        "glm4_moe",
        "gpt_oss",
        "llama",
        "deepseek_v4",
        "longcat_flash",
        "bailing_moe",
    ] {
        let checkpoint = open_checkpoint(golden_dir(name), None).unwrap();
        let spec = ModelSpec::of(checkpoint.config()).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let files = checkpoint.files().iter().flat_map(|file| &file.tensors);
        let used = files.filter(|t| naming.place(&t.name, &t.shape) != Placement::Extra);
        let found: BTreeSet<_> = used.map(|t| (t.name.clone(), t.shape.clone())).collect();
        let expected = spec.hub_tensors().unwrap().into_iter().map(|mut tensor| {
            if tensor.transposed {
                tensor.shape[1..].reverse();
            }
            (tensor.name, tensor.shape)
        });
        assert_eq!(expected.collect::<BTreeSet<_>>(), found, "{name}");
    }
}

#[test]
fn absurd_models_are_refused_before_anything_is_allocated() {
    let config = |layers: u64, experts: u64, width: u64| {
        let json = format!(
            r#"{{"model_type": "mixtral", "num_hidden_layers": {layers}, "hidden_size": 4096,
                "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
                "intermediate_size": {width}, "num_local_experts": {experts},
                "num_experts_per_tok": 2}}"#
        );
        ModelSpec::parse(json.as_bytes()).unwrap()
    };
    for (layers, experts, width) in [(4096, 65_536, 64), (1000, 65_536, 1 << 24)] {
        let spec = config(layers, experts, width);
        assert!(spec.outline(|_| Encoding::Q4).is_err());
        assert!(spec.hub_tensors().is_err());
        assert!(spec.parameters()[0] > 1 << 40);
    }
    // 60 TiB in few tensors.
    assert!(config(20, 8, 1 << 24).outline(|_| Encoding::Bf16).is_err());
    assert!(config(32, 8, 14_336).outline(|_| Encoding::Q4).is_ok());
}
