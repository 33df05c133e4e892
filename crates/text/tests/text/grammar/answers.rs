//! Answers of models that think before them, or call tools instead.

use std::sync::Arc;

use serde_json::{Value, json};
use sws_text::grammar::{AnswerMask, GrammarVocabulary, Structure};
use sws_text::{ChatTemplate, Constraint, Json, ReplyFormat, TokenMask, Tokenizer, ToolSchemas};

/// Markers, which follow the tokens of the bundled model.
const MARKERS: [&str; 9] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
];
const FIRST: usize = 4096;
const VOCAB: usize = FIRST + MARKERS.len();

struct Model {
    tokenizer: Arc<Tokenizer>,
    vocabulary: GrammarVocabulary,
    format: ReplyFormat,
}

impl Model {
    /// A model whose template has these words, and shows tools.
    fn new(template: &str) -> Model {
        let json = std::fs::read(sws_testing::tales().join("tokenizer.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&json).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        for (id, marker) in (FIRST..).zip(MARKERS) {
            let mut token = added[0].clone();
            (token["id"], token["content"]) = (id.into(), marker.into());
            added.push(token);
        }
        let tokenizer = Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap());
        let markers: Vec<u32> = (FIRST as u32..VOCAB as u32).collect();
        let ends = [0, tokenizer.id("<|return|>").unwrap()];
        let vocabulary =
            GrammarVocabulary::new(Arc::clone(&tokenizer), VOCAB, &ends, &markers).unwrap();
        let template = format!("{template}{{{{ tools }}}}");
        let files = ChatTemplate::from_files(None, Some(template.as_bytes()));
        let format = ReplyFormat::of(&files.unwrap().unwrap());
        Model { tokenizer, vocabulary, format }
    }

    fn answer(&self, prompt: &str, has_tools: bool) -> AnswerMask {
        let structure = Structure::Choice(vec!["yes".to_owned(), "no".to_owned()]);
        let grammar = self.vocabulary.compile(&structure).unwrap();
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
        let tools: Json = serde_json::from_value(tools).unwrap();
        let tools = has_tools.then(|| ToolSchemas::of(&tools));
        AnswerMask::new(grammar, Arc::clone(&self.tokenizer), self.format, prompt, tools)
    }

    fn allows(&self, constraint: &mut dyn Constraint, token: u32) -> bool {
        let mut logits = vec![0.0; VOCAB];
        constraint.mask(&mut logits).unwrap();
        logits[token as usize] == 0.0
    }

    /// Takes an answer token by token. Returns the first one that is not allowed.
    fn take(&self, constraint: &mut dyn Constraint, text: &str) -> Option<String> {
        for token in self.tokenizer.encode(text, false).unwrap() {
            if constraint.is_complete() || !self.allows(constraint, token) {
                return Some(self.tokenizer.token(token).unwrap());
            }
            constraint.take(token).unwrap();
        }
        None
    }
}

#[test]
fn reasoning_are_free_and_the_answer_is_not() {
    let model = Model::new("<think></think>");
    for (prompt, text, refused) in [
        ("user: hi\n", "yes", None),
        ("user: hi\n", "maybe", Some("m")),
        ("user: hi\n", "<think>\nmaybe, {[\n</think>\n\nno", None),
        ("user: hi\n", "<think>\nmaybe\n</think>no", None),
        ("user: hi\n", "<think>\nmaybe</think>\n\n\n\n\n\n\n\n\nno", Some("Ċ")),
        ("user: hi\n", "<think>maybe<|endoftext|>", Some("<|endoftext|>")),
        ("user: hi\n", "</think>", Some("</think>")),
        ("<think>\n", "so be it</think>yes", None),
        ("<think>\n", "so be it</think>so", Some("so")),
        ("<think>\n\n</think>\n\n", "yes", None),
        ("<think>\n\n</think>\n\n", "yes<think>", Some("<think>")),
    ] {
        let mut constraint = model.answer(prompt, false).begin();
        let found = model.take(&mut *constraint, text);
        let starts = |word: &str| found.as_deref().is_some_and(|found| found.starts_with(word));
        assert!(refused.map_or(found.is_none(), starts), "{prompt:?} {text:?}: {found:?}");
        assert_eq!(
            constraint.is_complete(),
            refused.is_none() || text.starts_with("yes<"),
            "{text}"
        );
    }
}

#[test]
fn a_call_may_stand_for_the_answer_where_there_are_tools() {
    let model = Model::new("<think></think><tool_call>");
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|endoftext|>";
    let reasoning = "<think>\nso\n</think>\n\n";
    for (has_tools, text, holds) in [
        (true, call.to_owned(), true),
        (true, format!("{reasoning}{call}"), true),
        (true, format!("{reasoning}yes"), true),
        (true, format!("yes{call}"), false),
        (false, call.to_owned(), false),
        (false, format!("{reasoning}{call}"), false),
    ] {
        let answer = model.answer("user: hi\n", has_tools);
        assert!(!answer.rules_out_calls());
        let found = model.take(&mut *answer.begin(), &text);
        assert_eq!(found.is_none(), holds, "{has_tools} {text}: {found:?}");
    }
    assert!(Model::new("<|python_tag|>").answer("", true).rules_out_calls());
}

#[test]
fn messages_with_headers_have_the_structure_in_their_text() {
    let model = Model::new("<|channel|><|message|>");
    let reasoning = "<|channel|>analysis<|message|>maybe {<|end|>";
    for (text, holds) in [
        ("<|channel|>final<|message|>yes".to_owned(), true),
        (format!("{reasoning}<|start|>assistant<|channel|>final<|message|>no"), true),
        ("yes".to_owned(), false),
        ("<|channel|>final<|message|>maybe".to_owned(), false),
        (format!("{reasoning}yes"), false),
        (format!("{reasoning}<|return|>"), false),
        ("<|channel|>analysis<|message|>maybe<|return|>".to_owned(), false),
    ] {
        let mut constraint = model.answer("<|start|>assistant", false).begin();
        let found = model.take(&mut *constraint, &text);
        assert_eq!(found.is_none(), holds, "{text}: {found:?}");
        assert_eq!(constraint.is_complete(), holds, "{text}");
    }
    // A call has a header of its own.
    let call = format!(
        "{reasoning}<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{{\"a\": 1}}"
    );
    assert_eq!(model.take(&mut *model.answer("<|start|>assistant", true).begin(), &call), None);
}
