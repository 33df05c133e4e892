//! Facts about a served model, for all threads except the worker's.

use std::sync::Arc;

use sws::{
    Activations, Defaults, GenerationOptions, LoadedModel, Needs, PlannedModel, StatePooling,
    TextCodec, Warning,
};
use sws_engine::Plan;
use sws_model::KvPrecision;
use sws_text::{ChatTemplate, Detokenizer, Position, ReplyFormat, SettingOf, Tokenizer};

use crate::ModelNames;
use crate::engine::ServedEngine;
use crate::failure::Failure;
use crate::room::Room;

/// Facts about a served model, for all threads except the worker's.
pub(crate) struct Served {
    pub(crate) model: sws::Model,
    pub(crate) text: TextCodec,
    pub(crate) defaults: Defaults,
    /// Format of the answers in conversations.
    pub(crate) format: ReplyFormat,
    /// Special tokens that stay in the text of such answers.
    pub(crate) shown: Vec<u32>,
    /// Default settings of conversations, or of texts for a model without conversations.
    pub(crate) settings: [SettingOf; 7],
    /// Tokens that end a text.
    pub(crate) ends: Vec<u32>,
    /// Memory for structured output, which all models share.
    pub(crate) room: Arc<Room>,
    /// Maximum length of a text, and size of the vocabulary.
    pub(crate) limit: usize,
    pub(crate) vocab: usize,
    /// Maximum number of texts at a time.
    pub(crate) texts: usize,
    /// True if tokens of prompts can be ranked.
    pub(crate) prompt_ranks: bool,
    pub(crate) engine: ServedEngine,
    /// The division of the memory budget, if there is one.
    pub(crate) plan: Option<Plan>,
    pub(crate) identity: ServedIdentity,
}

/// Identity of a served model, for responses.
pub(crate) struct ServedIdentity {
    /// Number of the model among those of the server.
    pub(crate) number: usize,
    pub(crate) names: ModelNames,
    pub(crate) created: i64,
    pub(crate) fingerprint: String,
    /// Precision of the KV cache.
    pub(crate) kv: KvPrecision,
    /// Kind of activations of products.
    pub(crate) activations: Activations,
    /// How texts become vectors, if the model was made for that.
    pub(crate) pooling: Option<StatePooling>,
    /// Reasons why the result differs from that of the published weights.
    pub(crate) lossy: Vec<String>,
}

/// Facts about a model that is loaded or planned.
pub(crate) struct ServedModel {
    model: sws::Model,
    text: TextCodec,
    plan: Option<Plan>,
    limit: usize,
    vocab: usize,
    needs: Needs,
    kv: KvPrecision,
    activations: Activations,
    lossy: Vec<String>,
}

impl ServedModel {
    /// A model that was loaded with these needs.
    pub(crate) fn loaded(model: &mut LoadedModel, needs: Needs) -> ServedModel {
        let lossy = model.warnings().iter().filter(|warning| matches!(warning, Warning::Lossy(_)));
        ServedModel {
            lossy: lossy.map(Warning::to_string).collect(),
            vocab: model.causal_lm().vocab(),
            model: model.model().clone(),
            text: model.text().clone(),
            plan: model.plan().cloned(),
            limit: model.limit(),
            needs,
            kv: model.kv(),
            activations: model.activations(),
        }
    }

    /// A model that is loaded when it is needed.
    pub(crate) fn planned(model: &PlannedModel) -> ServedModel {
        let lossy = model.lossy().into_iter().map(Warning::Lossy);
        ServedModel {
            lossy: lossy.map(|warning| warning.to_string()).collect(),
            vocab: model.model().spec().vocab,
            model: model.model().clone(),
            text: model.text().clone(),
            plan: Some(model.plan().clone()),
            limit: model.plan().context,
            needs: model.needs(),
            kv: model.kv(),
            activations: model.activations(),
        }
    }

    /// The memory for structured output that is there whichever of these models is loaded.
    pub(crate) fn room_of_all(models: &[ServedModel]) -> Room {
        let plans: Vec<&Plan> = models.iter().filter_map(|model| model.plan.as_ref()).collect();
        let vocab = models.iter().map(|model| model.vocab).sum();
        let texts = models.iter().map(|model| model.needs.texts).min().unwrap_or(1);
        Room::new(&plans, vocab, texts)
    }
}

impl Served {
    /// The model with this number. `log` receives the settings of its files that are ignored.
    pub(crate) fn new(
        of: ServedModel,
        (number, names): (usize, ModelNames),
        room: Arc<Room>,
        created: i64,
        log: &dyn Fn(&str),
    ) -> sws::Result<Served> {
        let ServedModel { model, text, plan, limit, vocab, needs, kv, activations, lossy } = of;
        let manifest = model.manifest();
        let arithmetic = manifest.arithmetic();
        let mut rounded = match activations {
            Activations::F32 => String::new(),
            activations => format!("-{activations}"),
        };
        if kv != KvPrecision::F32 {
            rounded += &format!("-kv-{}", kv.name());
        }
        let short: String = manifest.model.fingerprint.chars().take(16).collect();
        let version = env!("CARGO_PKG_VERSION");
        let fingerprint = format!("sws-{version}-{arithmetic}{rounded}-{short}");
        let format = text.template().map_or(ReplyFormat::default(), ReplyFormat::of);
        let defaults = model.defaults()?;
        let pooling = model.pooling()?;
        let conversation = text.template().is_some();
        let thinks = text.template().is_some_and(ChatTemplate::thinks);
        let options = GenerationOptions { conversation, thinks, ..GenerationOptions::default() };
        let generation = defaults.generation(&options)?;
        for sentence in &generation.ignored {
            log(sentence);
        }
        Ok(Served {
            defaults,
            settings: generation.settings(),
            ends: generation.stop_tokens,
            room,
            format,
            shown: text.markers(format),
            text,
            model,
            limit,
            vocab,
            texts: needs.texts,
            prompt_ranks: needs.all_logits,
            engine: ServedEngine::default(),
            plan,
            identity: ServedIdentity {
                number,
                names,
                created,
                fingerprint,
                kv,
                activations,
                pooling,
                lossy,
            },
        })
    }

    /// Id of the model for clients.
    pub(crate) fn id(&self) -> &str {
        &self.identity.names.id
    }

    /// True if clients may use this id for the model.
    pub(crate) fn is_named(&self, asked: &str) -> bool {
        self.identity.names.contains(asked)
    }

    /// The model's format of tool calls; `None` if it has no chat template.
    pub(crate) fn tools(&self) -> Option<&'static str> {
        self.text.template()?;
        Some(if self.format.has_generic_calls() { "generic" } else { "template" })
    }

    /// The memory budget in bytes, if there is one.
    pub(crate) fn budget(&self) -> Option<u64> {
        self.plan.as_ref().map(|plan| plan.ledger.budget())
    }

    /// The tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        self.text.tokenizer().ok_or_else(Failure::no_tokenizer)
    }

    /// The text of a single token. If it is not a whole number of characters, its name in the
    /// vocabulary.
    pub(crate) fn name(&self, token: u32) -> String {
        let Some(tokenizer) = self.text.tokenizer() else {
            return token.to_string();
        };
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(tokenizer, Position::Middle, false);
        detokenizer.push(token, &mut text);
        detokenizer.finish(&mut text);
        match text.contains('\u{fffd}') {
            true => tokenizer.token(token).unwrap_or_default(),
            false => text,
        }
    }
}
