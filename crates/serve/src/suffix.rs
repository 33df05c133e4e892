//! Texts before a suffix.

use sws_text::{Generation, Infill, InfillFile};

use crate::failure::Failure;
use crate::messages::not_encoded;
use crate::served::Served;

/// The tokens of a prompt for the text between a prefix and a suffix, which `field` has.
pub(crate) fn prompt_tokens(
    served: &Served,
    field: &str,
    prefix: &str,
    suffix: &str,
    files: &[InfillFile],
) -> Result<Vec<u32>, Failure> {
    let infill = infill(served, field)?;
    infill.prompt(served.tokenizer()?, prefix, suffix, files).map_err(not_encoded)
}

/// The tokens with which the model fills in texts.
pub(crate) fn infill(served: &Served, field: &str) -> Result<Infill, Failure> {
    served.model.infill(served.tokenizer()?).ok_or_else(|| {
        let message = "this model's vocabulary has no tokens for a text before a suffix; send the prompt alone";
        Failure::unsupported(field, message)
    })
}

/// Lets the tokens around texts end a text, unless no token does.
pub(crate) fn end_at_marks(generation: &mut Generation, infill: &Infill) {
    if !generation.stop_tokens.is_empty() {
        generation.stop_tokens.extend(infill.ends());
    }
}
