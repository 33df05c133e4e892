//! Tensors that show that the model needs a computation that would be left out.

use super::source::{CheckpointTensors, CodesForm};
use super::{Placement, StoredTensor};
use crate::Naming;

/// Reasons why a checkpoint cannot be computed without a tensor that no pass reads.
pub(super) enum Strange {
    /// The tensor belongs to the codes of this matrix of the model, which is not quantised.
    Codes(String),
    /// The tensor scales the inputs of this matrix of the model.
    Inputs(String),
    /// The tensor belongs to an adapter.
    Adapter,
}

/// Endings of tensors that belong to the codes of a matrix, with the ending of the matrix's name.
const OF_CODES: [(&str, &str); 14] = [
    (".qweight", ".weight"),
    (".qzeros", ".weight"),
    (".scales", ".weight"),
    (".scale", ".weight"),
    (".qscale_weight", ".weight"),
    ("_scale_inv", ""),
    ("_scale_2", ""),
    ("_global_scale", ""),
    ("_scale", ""),
    ("_scales", ""),
    ("_zero_point", ""),
    ("_packed", ""),
    ("_blocks", ""),
    ("_shape", ""),
];

/// Ending of a tensor that multiplies the inputs of a matrix.
const OF_INPUTS: &str = ".pre_quant_scale";

/// Endings of an adapter's tensors, after the name of the adapted module.
const OF_ADAPTERS: [&str; 6] = [
    ".lora_A",
    ".lora_B",
    ".lora_embedding_A",
    ".lora_embedding_B",
    ".lora_magnitude_vector",
    ".base_layer",
];

/// Checks a tensor that has no place among the pieces. Only names related to a tensor with a place
/// matter: other parts, such as vision, may be quantised in any way.
pub(super) fn strange(
    stored: &StoredTensor<'_>,
    source: &CheckpointTensors<'_>,
    naming: &dyn Naming,
) -> Option<Strange> {
    let name = stored.tensor.name.as_str();
    let shape = &stored.tensor.shape;
    let has_place = |name: &str| naming.place(name, shape) != Placement::Extra;
    let within = name.strip_prefix("base_model.model.").unwrap_or(name);
    let module = OF_ADAPTERS.iter().find_map(|marker| Some(within.split_once(marker)?.0));
    if module.is_some_and(|module| has_place(&format!("{module}.weight"))) {
        return Some(Strange::Adapter);
    }
    if let Some(matrix) = name.strip_suffix(OF_INPUTS).map(|stem| format!("{stem}.weight"))
        && has_place(&matrix)
    {
        return Some(Strange::Inputs(matrix));
    }
    for (ending, instead) in OF_CODES {
        let Some(stem) = name.strip_suffix(ending) else { continue };
        let matrix = format!("{stem}{instead}");
        // A place may depend on the shape, which is not that of the scales. Codes that do not fit are refused elsewhere.
        let of = source.named(&matrix).map_or(shape, |codes| &codes.tensor.shape);
        if naming.place(&matrix, of) != Placement::Extra && !has_codes(source, stem, &matrix) {
            return Some(Strange::Codes(matrix));
        }
    }
    None
}

/// True if a matrix has codes with scales.
fn has_codes(source: &CheckpointTensors<'_>, stem: &str, matrix: &str) -> bool {
    let names = [
        matrix.to_owned(),
        format!("{matrix}_packed"),
        format!("{matrix}_blocks"),
        format!("{stem}.qweight"),
    ];
    for name in names {
        if let Some(codes) = source.named(&name)
            && !matches!(source.find(&codes), CodesForm::Plain)
        {
            return true;
        }
    }
    false
}
