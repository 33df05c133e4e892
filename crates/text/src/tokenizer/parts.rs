//! The parts of a tokenizer, read from a file of either format.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerBuilder,
};

use super::bpe::Bpe;
use super::memory::TokenizerSizes;
use super::model::{Inner, WordModel};
use super::outline::TokenizerOutline;
use super::{TokenizerError, damaged};

/// The parts of a tokenizer.
pub(in super::super) struct TokenizerParts {
    pub(in super::super) normalizer: Option<NormalizerWrapper>,
    pub(in super::super) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(in super::super) post_processor: Option<PostProcessorWrapper>,
    pub(in super::super) decoder: Option<DecoderWrapper>,
    pub(in super::super) added: Vec<AddedToken>,
    pub(in super::super) model: WordModel,
    /// Size of the longest token in bytes.
    pub(in super::super) longest: usize,
}

impl TokenizerParts {
    /// Parses the parts of a `tokenizer.json`.
    pub(super) fn of_outline(
        json: &[u8],
        outline: &TokenizerOutline<'_>,
        sizes: &TokenizerSizes,
    ) -> Result<TokenizerParts, TokenizerError> {
        if let Some(version) = outline.version.as_deref().filter(|&version| version != "1.0") {
            return Err(damaged(format!("its version is {version:.10}")));
        }
        let model = match outline.model.is_bpe() {
            true => Bpe::of_outline(&outline.model, sizes).map(WordModel::Bpe),
            false => {
                serde_json::from_slice(json).map(|OtherModel { model }| WordModel::Other(model))
            }
        };
        Ok(TokenizerParts {
            normalizer: step(outline.normalizer)?,
            pre_tokenizer: step(outline.pre_tokenizer)?,
            post_processor: step(outline.post_processor)?,
            decoder: step(outline.decoder)?,
            added: outline.added(),
            model: model.map_err(damaged)?,
            longest: sizes.longest(),
        })
    }

    /// Builds the tokenizer of the `tokenizers` crate.
    pub(super) fn build(self) -> Result<Inner, TokenizerError> {
        let builder = TokenizerBuilder::new()
            .with_normalizer(self.normalizer)
            .with_pre_tokenizer(self.pre_tokenizer)
            .with_post_processor(self.post_processor)
            .with_decoder(self.decoder)
            .with_model(self.model);
        let mut inner: Inner = builder.build().map_err(damaged)?;
        inner.add_tokens(self.added).map_err(damaged)?;
        Ok(inner)
    }
}

#[derive(Deserialize)]
struct OtherModel {
    model: tokenizers::ModelWrapper,
}

/// Parses a step, if there is one.
fn step<T: DeserializeOwned>(json: Option<&RawValue>) -> Result<Option<T>, TokenizerError> {
    json.map(|json| serde_json::from_str(json.get()).map_err(damaged)).transpose()
}
