//! The structure that `sws run` gives its texts, and `sws chat` its answers.

#[cfg(feature = "forms")]
use asked::compiled;
use sws::{Model, TextCodec};
use sws_text::{Generation, TokenMask};
#[cfg(feature = "forms")]
use sws_text::{ReplyFormat, grammar};

use crate::args::StructuredArgs;

/// The structure of texts. Without one they are free, as in a program without the feature `forms`.
#[derive(Default)]
pub(super) struct StructuredOutput {
    #[cfg(feature = "forms")]
    grammar: Option<grammar::Grammar>,
}

/// The structure that was asked for, compiled for the tokens of a model.
#[cfg(feature = "forms")]
pub(super) fn structured_output(
    asked: &StructuredArgs,
    model: &Model,
    text: &TextCodec,
    generation: &Generation,
) -> anyhow::Result<StructuredOutput> {
    Ok(StructuredOutput { grammar: compiled(asked, model, text, generation)? })
}

/// Texts are free.
#[cfg(not(feature = "forms"))]
pub(super) fn structured_output(
    _: &StructuredArgs,
    _: &Model,
    _: &TextCodec,
    _: &Generation,
) -> anyhow::Result<StructuredOutput> {
    Ok(StructuredOutput::default())
}

#[cfg(feature = "forms")]
impl StructuredOutput {
    /// True if texts have no structure.
    pub(super) fn is_free(&self) -> bool {
        self.grammar.is_none()
    }

    /// Bytes on the heap that each text takes for its structure.
    pub(super) fn heap(&self) -> u64 {
        if self.is_free() { 0 } else { grammar::Grammar::WRITTEN }
    }

    /// The constraint of a text.
    pub(super) fn of_a_text(&self) -> Option<Box<dyn TokenMask>> {
        let grammar = self.grammar.as_ref()?.copy();
        Some(Box::new(grammar))
    }

    /// The constraint of an answer to a prompt, which may think before.
    pub(super) fn of_an_answer(
        &self,
        text: &TextCodec,
        prompt: &str,
    ) -> Option<Box<dyn TokenMask>> {
        let grammar = self.grammar.as_ref()?.copy();
        let tokenizer = text.shared_tokenizer()?;
        let format = text.template().map_or(ReplyFormat::default(), ReplyFormat::of);
        Some(Box::new(grammar::AnswerMask::new(grammar, tokenizer, format, prompt, None)))
    }
}

#[cfg(not(feature = "forms"))]
impl StructuredOutput {
    pub(super) fn is_free(&self) -> bool {
        true
    }

    pub(super) fn heap(&self) -> u64 {
        0
    }

    pub(super) fn of_a_text(&self) -> Option<Box<dyn TokenMask>> {
        None
    }

    pub(super) fn of_an_answer(&self, _: &TextCodec, _: &str) -> Option<Box<dyn TokenMask>> {
        None
    }
}

#[cfg(feature = "forms")]
mod asked {
    use anyhow::{anyhow, bail};
    use sws::{GenerationOptions, Lacking};
    use sws_format::open_named;
    use sws_text::grammar::{Grammar, GrammarVocabulary, MAX_STRUCTURE_BYTES, Structure};

    use super::{Generation, Model, StructuredArgs, TextCodec};
    use crate::input::read_text;

    pub(super) fn compiled(
        asked: &StructuredArgs,
        model: &Model,
        text: &TextCodec,
        generation: &Generation,
    ) -> anyhow::Result<Option<Grammar>> {
        let Some((option, structure)) = structure(asked)? else { return Ok(None) };
        let Some(tokenizer) = text.shared_tokenizer() else {
            return Err(model.error(Lacking::Tokenizer).into());
        };
        let ends = model.defaults()?.generation(&GenerationOptions::default())?.stop_tokens;
        let known = GrammarVocabulary::new(tokenizer, model.spec().vocab, &ends, &[]);
        let grammar = match known.and_then(|known| known.compile(&structure)) {
            Ok(grammar) => grammar,
            Err(error) => bail!("{option} {error}"),
        };
        // Ends are ignored with --ignore-eos.
        let has_ends = !generation.stop_tokens.is_empty();
        Ok(Some(if has_ends { grammar } else { grammar.without_ends() }))
    }

    /// The structure, and the option that asks for it.
    fn structure(asked: &StructuredArgs) -> anyhow::Result<Option<(&'static str, Structure)>> {
        let StructuredArgs { json_schema, regex, grammar } = asked;
        if let Some(given) = json_schema {
            let option = "--json-schema";
            let json = given_or_read(given, option, given.trim_start().starts_with('{'))?;
            let schema = match serde_json::from_str(&json) {
                Ok(schema) => schema,
                Err(error) => {
                    bail!("{option} is no JSON: {error}; give a schema, or a file with one")
                }
            };
            return Ok(Some((option, Structure::Schema { schema, strict: true })));
        }
        if let Some(regex) = regex {
            return Ok(Some(("--regex", Structure::Regex(regex.clone()))));
        }
        if let Some(given) = grammar {
            let option = "--grammar";
            let is_grammar = given.contains("::=") || given.trim_start().starts_with("start:");
            let grammar = given_or_read(given, option, is_grammar)?;
            return Ok(Some((option, Structure::Grammar(grammar))));
        }
        Ok(None)
    }

    /// The value of an option, or what is in the file that it names.
    fn given_or_read(given: &str, option: &str, is_value: bool) -> anyhow::Result<String> {
        if is_value {
            return Ok(given.to_owned());
        }
        let name = format!("`{given}`, which {option} names,");
        let file = match open_named(given) {
            Ok(file) => file,
            Err(error) => bail!("{name} cannot be read: {error}; name another file"),
        };
        let text = read_text(file, &name)?;
        match text.len() > MAX_STRUCTURE_BYTES {
            true => Err(anyhow!("{name} has more than {MAX_STRUCTURE_BYTES} bytes; shorten it")),
            false => Ok(text),
        }
    }
}
