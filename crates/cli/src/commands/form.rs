//! The form that `sws run` gives its texts.

use std::sync::Arc;

use sws::{Model, Text};
use sws_model::text::{Constrain, Generation};

use crate::args;

/// The form of texts.
#[derive(Debug, Default)]
pub(super) struct Formed {
    /// `None` for free texts.
    pub(super) constraint: Option<Arc<dyn Constrain>>,
    /// Bytes on the heap that each text takes for it.
    pub(super) heap: u64,
}

/// The form that was asked for, compiled for the tokens of a model.
#[cfg(feature = "forms")]
pub(super) fn formed(
    args: &args::Run,
    model: &Model,
    text: &Text,
    generation: &Generation,
) -> anyhow::Result<Formed> {
    asked::formed(&args.form, model, text, generation)
}

/// Texts are free in a program without forms.
#[cfg(not(feature = "forms"))]
pub(super) fn formed(_: &args::Run, _: &Model, _: &Text, _: &Generation) -> anyhow::Result<Formed> {
    Ok(Formed::default())
}

#[cfg(feature = "forms")]
mod asked {
    use anyhow::anyhow;
    use sws::{GenerationOptions, Lacking};
    use sws_grammar::{Form, Grammar, MAX_FORM_BYTES, Vocabulary};
    use sws_store::open_named;

    use super::super::run::read_text;
    use super::{Arc, Formed, Generation, Model, Text};
    use crate::args::TextForm;

    pub(super) fn formed(
        asked: &TextForm,
        model: &Model,
        text: &Text,
        generation: &Generation,
    ) -> anyhow::Result<Formed> {
        let Some((option, form)) = form(asked)? else { return Ok(Formed::default()) };
        let tokenizer = text.shared_tokenizer().ok_or_else(|| model.error(Lacking::Tokenizer))?;
        let ends = model.defaults()?.generation(&GenerationOptions::default())?.stop_tokens;
        let known = Vocabulary::new(tokenizer, model.spec().vocab, &ends, &[]);
        let grammar = known
            .and_then(|known| known.compile(&form))
            .map_err(|error| anyhow!("{option} {error}"))?;
        // Ends are ignored with --ignore-eos.
        let has_ends = !generation.stop_tokens.is_empty();
        let grammar = if has_ends { grammar } else { grammar.without_ends() };
        Ok(Formed { constraint: Some(Arc::new(grammar)), heap: Grammar::WRITTEN })
    }

    /// The form, and the option that asks for it.
    fn form(asked: &TextForm) -> anyhow::Result<Option<(&'static str, Form)>> {
        let TextForm { json_schema, regex, grammar } = asked;
        if let Some(given) = json_schema {
            let option = "--json-schema";
            let json = given_or_read(given, option, given.trim_start().starts_with('{'))?;
            let schema = serde_json::from_str(&json).map_err(|error| {
                anyhow!("{option} is no JSON: {error}; give a schema, or a file with one")
            })?;
            return Ok(Some((option, Form::Schema { schema, strict: true })));
        }
        if let Some(regex) = regex {
            return Ok(Some(("--regex", Form::Regex(regex.clone()))));
        }
        if let Some(given) = grammar {
            let option = "--grammar";
            let is_grammar = given.contains("::=") || given.trim_start().starts_with("start:");
            let grammar = given_or_read(given, option, is_grammar)?;
            return Ok(Some((option, Form::Grammar(grammar))));
        }
        Ok(None)
    }

    /// The value of an option, or what is in the file that it names.
    fn given_or_read(given: &str, option: &str, is_value: bool) -> anyhow::Result<String> {
        if is_value {
            return Ok(given.to_owned());
        }
        let name = format!("`{given}`, which {option} names,");
        let file = open_named(given)
            .map_err(|error| anyhow!("{name} cannot be read: {error}; name another file"))?;
        let text = read_text(file, &name)?;
        match text.len() > MAX_FORM_BYTES {
            true => Err(anyhow!("{name} has more than {MAX_FORM_BYTES} bytes; shorten it")),
            false => Ok(text),
        }
    }
}
