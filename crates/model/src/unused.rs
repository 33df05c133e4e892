//! Tensors of the weights that a model does not need.

use std::collections::HashSet;
use std::convert::Infallible;

use sws_store::{Manifest, PieceId, PieceKind, Tensor};

use crate::families::{self, Names};
use crate::spec::ModelSpec;

/// A tensor that no pass reads.
#[derive(Clone, Copy, Debug)]
pub struct Unused<'m> {
    /// The tensor.
    pub tensor: &'m Tensor,
    /// True if it is one of the language model's layers, so that the configuration may be that of another
    /// model. False for vision, audio and multi-token prediction.
    pub of_layers: bool,
}

impl ModelSpec {
    /// The tensors that no pass reads, of weights that have all that passes do read.
    pub fn unused<'m>(&self, manifest: &'m Manifest) -> Vec<Unused<'m>> {
        let Some(names) = families::names(&self.model_type, self.wrapper.as_deref()) else {
            return Vec::new();
        };
        let names = names.of_weights(manifest);
        let mut read = HashSet::new();
        let mut unused = Vec::new();
        let Ok(()) = self.pieces(|id, wanted| {
            read.insert(id);
            let tensors = manifest.piece(id).map_or(&[][..], |piece| &piece.tensors);
            if tensors.len() > wanted.len() {
                let name = |role| names.names_of(id, role).chain([names.name_of(id, role)]);
                let known: HashSet<_> = wanted.iter().flat_map(|it| name(it.role)).collect();
                let others = tensors.iter().filter(|tensor| !known.contains(&tensor.name));
                // Programs that make GPTQ add biases of zeros.
                let packed = tensors.iter().any(|tensor| tensor.packing.is_some());
                let added = |tensor: &Tensor| packed && tensor.name.ends_with(".bias");
                unused.extend(others.map(|tensor| Unused { tensor, of_layers: !added(tensor) }));
            }
            Ok::<(), Infallible>(())
        });
        let predicting = predicting(names, manifest);
        let beyond = |tensor: &Tensor| {
            let layers = self.layers.len() as u64 / u64::from(names.parts.max(1));
            layer_of(names, &tensor.name)
                .is_some_and(|layer| layer >= layers && !predicting.contains(&layer))
        };
        for piece in manifest.pieces.iter().filter(|piece| !read.contains(&piece.id)) {
            let extra = piece.id.kind() == PieceKind::Extra;
            let tensors = piece.tensors.iter();
            unused.extend(
                tensors.map(|tensor| Unused { tensor, of_layers: !extra || beyond(tensor) }),
            );
        }
        unused
    }
}

/// The layers that predict further tokens: they combine a hidden state with an embedding first.
fn predicting(names: Names, manifest: &Manifest) -> HashSet<u64> {
    let extra = manifest.piece(PieceId::EXTRA).into_iter().flat_map(|piece| &piece.tensors);
    let combining = extra.filter(|tensor| tensor.name.contains("eh_proj"));
    combining.filter_map(|tensor| layer_of(names, &tensor.name)).collect()
}

/// Number of the layer in the name of a tensor, in safetensors or in GGUF files.
fn layer_of(names: Names, name: &str) -> Option<u64> {
    let rest = names.in_layers(name).or_else(|| name.strip_prefix("blk."))?;
    rest.split('.').next()?.parse().ok()
}
