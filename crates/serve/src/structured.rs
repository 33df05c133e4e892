//! Structured output: the fields that request it, and its constraint.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use sws_text::grammar::{
    AnswerMask, Grammar, GrammarVocabulary, MAX_STRUCTURE_BYTES, Structure, StructureError,
};
use sws_text::{Constraint, ConstraintError, Generation, TokenMask};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Nothing, in_words};
use crate::messages::PromptRequest;
use crate::served::Served;

/// Values that are parsed once their size is known.
type Raw = Option<Box<RawValue>>;
/// Makes a structure from text.
type OfText = fn(String) -> Structure;

/// The fields of chats and completions that request a structure: OpenAI's, vLLM's, and those of
/// llama.cpp's server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StructuredFields {
    response_format: Raw,
    structured_outputs: Raw,
    guided_json: Raw,
    guided_regex: Raw,
    guided_choice: Raw,
    guided_grammar: Raw,
    json_schema: Raw,
    grammar: Raw,
}

/// A structure, and the field that requested it.
#[derive(Debug, PartialEq)]
pub(crate) struct OutputFormat {
    pub(crate) structure: Structure,
    field: &'static str,
}

/// Types of formats.
const FORMATS: &[&str] = &["text", "json_object", "json_schema"];

/// The type of a format. It determines the format's other fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Typed {
    #[serde(rename = "type")]
    kind: String,
}

/// A format in the shapes of all interfaces.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FormatFields {
    #[serde(rename = "type")]
    _kind: Nothing,
    json_schema: Option<NamedSchema>,
    schema: Option<Value>,
    strict: Option<bool>,
    #[serde(rename = "name")]
    _name: Nothing,
    #[serde(rename = "description")]
    _description: Nothing,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NamedSchema {
    schema: Option<Value>,
    strict: Option<bool>,
    #[serde(rename = "name")]
    _name: Nothing,
    #[serde(rename = "description")]
    _description: Nothing,
}

/// vLLM's options.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Structured {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    structural_tag: Option<Value>,
    whitespace_pattern: Option<String>,
    disable_additional_properties: Option<bool>,
    /// Optional white space is never generated anyway.
    #[serde(rename = "disable_any_whitespace")]
    _any_whitespace: Nothing,
    #[serde(rename = "disable_fallback")]
    _fallback: Nothing,
}

impl StructuredFields {
    /// The requested structure, if there is one.
    pub(crate) fn output_format(self) -> Result<Option<OutputFormat>, Failure> {
        let mut all = Vec::new();
        if let Some(raw) = self.response_format {
            all.extend(format(&raw, "response_format", false)?);
        }
        if let Some(raw) = self.structured_outputs {
            all.extend(structured(&raw)?);
        }
        for (raw, field) in [(self.guided_json, "guided_json"), (self.json_schema, "json_schema")] {
            if let Some(raw) = raw {
                let schema = schema(read(&raw, field)?, field)?;
                all.push(OutputFormat {
                    structure: Structure::Schema { schema, strict: true },
                    field,
                });
            }
        }
        if let Some(raw) = self.guided_choice {
            let field = "guided_choice";
            all.push(OutputFormat { structure: Structure::Choice(read(&raw, field)?), field });
        }
        let regex: OfText = Structure::Regex;
        let grammar: OfText = Structure::Grammar;
        for (raw, field, structure) in [
            (self.guided_regex, "guided_regex", regex),
            (self.guided_grammar, "guided_grammar", grammar),
            (self.grammar, "grammar", grammar),
        ] {
            if let Some(raw) = raw {
                all.push(OutputFormat { structure: structure(read(&raw, field)?), field });
            }
        }
        if let Some(OutputFormat { field, .. }) = all.iter().find(|format| format.is_empty()) {
            return Err(empty(field));
        }
        if let [_, second, ..] = &all[..] {
            let message = "only one structure of the answer can be asked for; leave the others out";
            return Err(Failure::field(second.field, message));
        }
        Ok(all.pop())
    }
}

/// Refuses a field that contains no structure.
fn empty(field: &'static str) -> Failure {
    Failure::field(
        field,
        format!("{field} is empty; say which structure the answer has, or leave it out"),
    )
}

/// The structure of a format, which is an object with a type. `strict` is the default for a schema
/// without `strict`: true if the whole schema must be enforced.
pub(crate) fn format(
    raw: &RawValue,
    field: &'static str,
    strict: bool,
) -> Result<Option<OutputFormat>, Failure> {
    let Typed { kind } = read(raw, field)?;
    if kind.is_empty() {
        return Err(Failure::field(field, format!("{field} has no type")));
    }
    if !FORMATS.contains(&kind.as_str()) {
        let kind: String = kind.chars().take(40).collect();
        let message = format!("{field} has the type `{kind}`; there are {}", FORMATS.join(", "));
        return Err(Failure::unsupported(field, message));
    }
    let format: FormatFields = read(raw, field)?;
    let has_schema = format.json_schema.is_some() || format.schema.is_some();
    let structure = match kind.as_str() {
        "text" if has_schema => {
            let message = format!("{field} has the type `text` and a schema; leave one out");
            return Err(Failure::field(field, message));
        }
        "text" => return Ok(None),
        "json_object" if format.json_schema.is_some() => {
            let message = format!(
                "{field} has the type `json_object` and a json_schema; its type is `json_schema`, then"
            );
            return Err(Failure::field(field, message));
        }
        "json_object" => match format.schema {
            Some(given) => Structure::Schema { schema: schema(given, field)?, strict: true },
            None => Structure::Object,
        },
        _ => {
            let named = format.json_schema.unwrap_or_default();
            let strict = named.strict.or(format.strict).unwrap_or(strict);
            match named.schema.or(format.schema) {
                Some(given) => Structure::Schema { schema: schema(given, field)?, strict },
                None => return Err(Failure::field(field, format!("{field} has no schema"))),
            }
        }
    };
    Ok(Some(OutputFormat { structure, field }))
}

fn structured(raw: &RawValue) -> Result<Vec<OutputFormat>, Failure> {
    let field = "structured_outputs";
    let Structured {
        json,
        regex,
        choice,
        grammar,
        json_object,
        structural_tag,
        whitespace_pattern,
        disable_additional_properties,
        ..
    } = read(raw, field)?;
    if structural_tag.is_some() || whitespace_pattern.is_some() {
        let message = "structured_outputs has a structural tag or a pattern of white space, which are not supported";
        return Err(Failure::unsupported(field, message));
    }
    if disable_additional_properties == Some(true) {
        let message = "structured_outputs has `disable_additional_properties`, which is not supported; say so in the schema";
        return Err(Failure::unsupported(field, message));
    }
    let mut structures = Vec::new();
    if let Some(json) = json {
        structures.push(Structure::Schema { schema: schema(json, field)?, strict: true });
    }
    structures.extend(regex.map(Structure::Regex));
    structures.extend(choice.map(Structure::Choice));
    structures.extend(grammar.map(Structure::Grammar));
    if json_object == Some(true) {
        structures.push(Structure::Object);
    }
    if structures.is_empty() {
        return Err(empty(field));
    }
    Ok(structures.into_iter().map(|structure| OutputFormat { structure, field }).collect())
}

/// A schema, given as an object or as text.
fn schema(given: Value, field: &'static str) -> Result<Value, Failure> {
    match given {
        Value::String(text) => serde_json::from_str(&text).map_err(|error| unread(field, &error)),
        schema => Ok(schema),
    }
}

/// Parses a value, if it is not too large.
fn read<T: DeserializeOwned>(raw: &RawValue, field: &'static str) -> Result<T, Failure> {
    // A text is slightly longer within JSON.
    let bytes = raw.get().len();
    let most = 2 * MAX_STRUCTURE_BYTES;
    if bytes > most {
        let error = StructureError::TooLong { bytes, most };
        return Err(Failure::field(field, format!("{field} {error}")));
    }
    serde_json::from_str(raw.get()).map_err(|error| unread(field, &error))
}

fn unread(field: &'static str, error: &serde_json::Error) -> Failure {
    Failure::field(field, format!("{field} cannot be read: {}", in_words(&error.to_string())))
}

/// The constraint of an answer in a conversation, if it has one: that of the tool call at its
/// beginning, or of the requested structure.
pub(crate) fn of_an_answer(
    app: &App,
    served: &Served,
    generation: &Generation,
    request: &PromptRequest,
    format: Option<OutputFormat>,
) -> Result<Option<Arc<dyn TokenMask>>, Failure> {
    match (&request.call, format) {
        (Some(structure), _) => of_a_call(app, served, generation, structure),
        // The answer begins with another tool call.
        _ if !request.begun.is_empty() => Ok(None),
        (None, Some(format)) => format.of_reasoning_and_text(served, generation, request).map(Some),
        (None, None) => Ok(None),
    }
}

/// The constraint of a required tool call. A schema that is not strict is enforced as far as
/// possible.
fn of_a_call(
    app: &App,
    served: &Served,
    generation: &Generation,
    structure: &Structure,
) -> Result<Option<Arc<dyn TokenMask>>, Failure> {
    let mask = |structure: &Structure| {
        let call = OutputFormat { structure: structure.clone(), field: "tools" };
        call.of_a_text(served, generation)
    };
    // A request for which there is no memory now is refused, or waits.
    let is_of_schema = |failure: &Failure| failure.status == StatusCode::BAD_REQUEST;
    let failure = match mask(structure) {
        Ok(found) => return Ok(Some(found)),
        Err(failure) if !is_of_schema(&failure) => return Err(failure),
        Err(failure) => failure,
    };
    let Some(relaxed) = structure.relaxed() else { return Err(failure) };
    app.log(&format!("the schema of a demanded call is ignored: {}", failure.message));
    match mask(&relaxed) {
        Err(failure) if is_of_schema(&failure) => Ok(None),
        found => found.map(Some),
    }
}

impl OutputFormat {
    /// True if the structure is empty.
    fn is_empty(&self) -> bool {
        match &self.structure {
            Structure::Regex(text) => text.is_empty(),
            Structure::Grammar(text) => text.trim().is_empty(),
            Structure::Choice(choices) => choices.is_empty(),
            _ => false,
        }
    }

    /// The constraint of a text that continues a prompt.
    pub(crate) fn of_a_text(
        &self,
        served: &Served,
        generation: &Generation,
    ) -> Result<Arc<dyn TokenMask>, Failure> {
        let permit = self.room(served)?;
        let grammar = self.compiled(served, generation)?;
        Ok(Arc::new(HeldMask { structure: Box::new(grammar), permit }))
    }

    /// The constraint of an answer that consists of reasoning and text.
    fn of_reasoning_and_text(
        &self,
        served: &Served,
        generation: &Generation,
        request: &PromptRequest,
    ) -> Result<Arc<dyn TokenMask>, Failure> {
        let permit = self.room(served)?;
        let grammar = self.compiled(served, generation)?;
        let tokenizer = served.text.shared_tokenizer().ok_or_else(Failure::no_tokenizer)?;
        let answer = AnswerMask::new(
            grammar,
            tokenizer,
            served.format,
            &request.end,
            request.schemas.clone(),
        );
        if answer.rules_out_calls() {
            let field = self.field;
            let message = format!(
                "{field} and tools are not supported together with this model's format of calls; leave one out"
            );
            return Err(Failure::unsupported(field, message));
        }
        Ok(Arc::new(HeldMask { structure: Box::new(answer), permit }))
    }

    /// Reserves the memory of the structure.
    fn room(&self, served: &Served) -> Result<Arc<OwnedSemaphorePermit>, Failure> {
        served.room.take(self.field, &self.structure, served.plan.as_ref()).map(Arc::new)
    }

    fn compiled(&self, served: &Served, generation: &Generation) -> Result<Grammar, Failure> {
        let compiled = served.vocabulary()?.and_then(|known| known.compile(&self.structure));
        let grammar = match compiled {
            Ok(grammar) => grammar,
            Err(error) => {
                let message = format!("{} {error}", self.field);
                return Err(match error {
                    StructureError::Vocabulary(_) => Failure::unsupported(self.field, message),
                    _ => Failure::field(self.field, message),
                });
            }
        };
        // The request may ask to ignore stop tokens.
        let has_ends = !generation.stop_tokens.is_empty();
        Ok(if has_ends { grammar } else { grammar.without_ends() })
    }
}

/// A compiled structure with its reserved memory.
#[derive(Debug)]
struct HeldMask {
    structure: Box<dyn TokenMask>,
    permit: Arc<OwnedSemaphorePermit>,
}

/// The constraint of one text with such a structure.
#[derive(Debug)]
struct Holding {
    text: Box<dyn Constraint>,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl TokenMask for HeldMask {
    fn begin(&self) -> Box<dyn Constraint> {
        Box::new(Holding { text: self.structure.begin(), _permit: Arc::clone(&self.permit) })
    }
}

impl Constraint for Holding {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        self.text.mask(logits)
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.text.take(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        self.text.forced()
    }

    fn is_complete(&self) -> bool {
        self.text.is_complete()
    }
}

impl Served {
    /// The vocabulary for structures.
    fn vocabulary(&self) -> Result<Result<GrammarVocabulary, StructureError>, Failure> {
        let tokenizer = self.text.shared_tokenizer().ok_or_else(Failure::no_tokenizer)?;
        Ok(self.room.vocabulary(self.identity.number, || {
            let mut markers = Vec::new();
            for marker in self.format.markers() {
                markers.extend(tokenizer.id(marker));
            }
            markers.extend(&self.shown);
            GrammarVocabulary::new(tokenizer, self.vocab, &self.ends, &markers)
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sws_text::grammar::CallOption;
    use sws_text::{ArgumentForm, GenerationOptions};

    use super::*;
    use crate::app::tests::without_worker;

    fn wanted(body: &Value) -> Result<Option<Structure>, String> {
        let structures: StructuredFields = serde_json::from_str(&body.to_string()).unwrap();
        structures
            .output_format()
            .map(|format| format.map(|format| format.structure))
            .map_err(|f| f.message)
    }

    /// It is never answered without its structure because there is no memory now.
    #[test]
    fn a_demanded_call_that_finds_no_memory_is_refused() {
        let app = without_worker();
        let served = app.served().unwrap();
        let generation = served.model.generation(&GenerationOptions::default()).unwrap();
        let option =
            CallOption { before: "f".to_owned(), schema: json!({"type": "object"}), strict: false };
        let form = ArgumentForm::Json;
        let call = Structure::Calls { options: vec![option], form, end: ".".to_owned() };
        let small = Structure::Regex("a".to_owned());
        let take = || served.room.take("guided_regex", &small, None).ok();
        let all: Vec<_> = std::iter::from_fn(take).collect();
        let refused = of_a_call(&app, &served, &generation, &call).unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        drop(all);
        assert!(of_a_call(&app, &served, &generation, &call).unwrap().is_some());
    }

    #[test]
    fn each_interface_has_its_fields() {
        let object = json!({"type": "object"});
        let structure = |strict| Some(Structure::Schema { schema: object.clone(), strict });
        for (body, expected) in [
            (json!({}), None),
            (json!({"response_format": null, "grammar": null, "structured_outputs": null}), None),
            (json!({"response_format": {"type": "text"}}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Structure::Object)),
            (
                json!({"response_format": {"type": "json_object", "schema": object}}),
                structure(true),
            ),
            (
                json!({"response_format": {"type": "json_schema", "schema": object}}),
                structure(false),
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": object}}}),
                structure(false),
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": object, "strict": true}}}),
                structure(true),
            ),
            (json!({"guided_json": object.to_string()}), structure(true)),
            (json!({"json_schema": object}), structure(true)),
            (json!({"structured_outputs": {"json": object}}), structure(true)),
            (json!({"structured_outputs": {"json_object": true}}), Some(Structure::Object)),
            (json!({"guided_regex": "a+"}), Some(Structure::Regex("a+".to_owned()))),
            (
                json!({"structured_outputs": {"choice": ["a"]}}),
                Some(Structure::Choice(vec!["a".to_owned()])),
            ),
            (json!({"guided_choice": ["a"]}), Some(Structure::Choice(vec!["a".to_owned()]))),
            (
                json!({"grammar": "root ::= \"a\""}),
                Some(Structure::Grammar("root ::= \"a\"".to_owned())),
            ),
        ] {
            assert_eq!(wanted(&body), Ok(expected), "{body}");
        }
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        let large = "a".repeat(3 * MAX_STRUCTURE_BYTES);
        for (body, words) in [
            (json!({"response_format": "json"}), "response_format cannot be read"),
            (
                json!({"response_format": {"type": "structural_tag", "structures": []}}),
                "`structural_tag`",
            ),
            (json!({"response_format": {}}), "response_format has no type"),
            (json!({"response_format": {"type": "text", "schema": {}}}), "leave one out"),
            (json!({"response_format": {"type": "json_object", "json_schema": {}}}), "its type is"),
            (json!({"grammar": " "}), "grammar is empty"),
            (json!({"guided_choice": []}), "guided_choice is empty"),
            (json!({"structured_outputs": {"regex": ""}}), "structured_outputs is empty"),
            (json!({"structured_outputs": {"json": null}}), "structured_outputs is empty"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format has no schema"),
            (json!({"guided_json": "{"}), "guided_json cannot be read"),
            (json!({"guided_choice": "a"}), "guided_choice cannot be read"),
            (json!({"guided_choice": [1]}), "guided_choice cannot be read"),
            (json!({"grammar": 3}), "grammar cannot be read"),
            (json!({"grammar": large}), "grammar has"),
            (json!({"structured_outputs": {"structural_tag": "a"}}), "a structural tag"),
            (json!({"grammar": "a", "guided_regex": "a"}), "only one structure"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}), "only one structure"),
        ] {
            let message = wanted(&body).unwrap_err();
            assert!(message.contains(words), "{body:.80}: {message}");
        }
    }
}
