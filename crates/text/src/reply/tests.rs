//! Answers in each format.

use serde_json::json;

use super::*;
use crate::Json;

fn format(template: &str) -> ReplyFormat {
    let template = format!("{template}{{{{ tools }}}}");
    let template = ChatTemplate::from_files(None, Some(template.as_bytes())).unwrap().unwrap();
    ReplyFormat::of(&template)
}

fn schemas() -> ToolSchemas {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "list": {"type": "array"},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    }}}}]);
    ToolSchemas::of(&serde_json::from_value::<Json>(tools).unwrap())
}

/// An answer as reasoning, text and calls.
#[derive(Debug, Default, PartialEq)]
struct Whole {
    reasoning: String,
    text: String,
    calls: Vec<ToolCall>,
}

fn read<'t>(reader: &mut ReplyReader, pieces: impl Iterator<Item = &'t str>, end: bool) -> Whole {
    let mut parts = Vec::new();
    pieces.for_each(|piece| reader.push(piece, &mut parts));
    reader.finish(end, &mut parts);
    let mut whole = Whole::default();
    for part in parts {
        match part {
            ReplyPart::Reasoning(text) => whole.reasoning += &text,
            ReplyPart::Text(text) => whole.text += &text,
            ReplyPart::Call(call) => whole.calls.push(call),
        }
    }
    whole
}

/// Reads a text in one piece, in two at each place, and in small pieces: all must be the same.
#[track_caller]
fn whole(template: &str, prompt: &str, text: &str, end: bool) -> Whole {
    let reader = || format(template).reader(prompt, Some(schemas()));
    let expected = read(&mut reader(), [text].into_iter(), end);
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
    for &at in &places {
        let (one, other) = text.split_at(at);
        assert_eq!(
            read(&mut reader(), [one, other].into_iter(), end),
            expected,
            "{one:?} {other:?}"
        );
    }
    for size in 1..=9 {
        let mut pieces: Vec<&str> = Vec::new();
        let mut from = 0;
        for &at in places.iter().skip(size - 1).step_by(size).chain([&text.len()]) {
            pieces.push(&text[from..at]);
            from = at;
        }
        assert_eq!(read(&mut reader(), pieces.into_iter(), end), expected, "by {size}");
    }
    expected
}

#[track_caller]
fn check(template: &str, text: &str, expected: (&str, &str, &[(&str, &str)])) {
    let found = whole(template, "", text, true);
    let calls: Vec<(&str, &str)> =
        found.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!((found.reasoning.as_str(), found.text.as_str(), &calls[..]), expected, "{text}");
}

const QWEN: &str = "<think></think><tool_call>";
const CODER: &str = "<tool_call><function=";
const GLM: &str = "<think></think><tool_call><arg_key>";
const MINIMAX: &str = "<think></think><minimax:tool_call>";
const DSML: &str = "<think></think><｜DSML｜function_calls>";
const DEEPSEEK: &str = "<think></think><｜tool▁call▁begin｜>";
const KIMI: &str = "<|tool_call_begin|>";
const MISTRAL: &str = "[THINK][/THINK][TOOL_CALLS]";
const LLAMA: &str = "<|python_tag|>";
const COHERE: &str = "<|START_THINKING|><|END_THINKING|><|START_ACTION|>";
const GEMMA: &str = "<|channel>thought\n<channel|><|tool_call>call:";
const MINIMAX_M3: &str = "<mm:think></mm:think>";
const KIMI_K3: &str = "<|open|><|close|><|sep|>";
const HARMONY: &str = "<|channel|><|message|>";
const INKLING: &str = "<|message_model|><|content_thinking|><|end_message|>";

#[test]
fn reasoning_come_before_the_answer() {
    check(QWEN, "<think>\nso\n</think>\n\nYes. \n", ("so", "Yes. \n", &[]));
    check(QWEN, "\n<think>a</think>b", ("a", "b", &[]));
    check(QWEN, "\n Yes <think>no</think>", ("", "\n Yes <think>no</think>", &[]));
    check(QWEN, "<thin", ("", "<thin", &[]));
    check(QWEN, "<think>cut off ", ("cut off ", "", &[]));
    check(MISTRAL, "[THINK]a [b]\n[/THINK]c", ("a [b]", "c", &[]));
    check(COHERE, "<|START_THINKING|>so<|END_THINKING|>Yes.", ("so", "Yes.", &[]));
    check(COHERE, "Yes.<|END_THINKING|>", ("", "Yes.<|END_THINKING|>", &[]));
    check(GEMMA, "<|channel>thought\nso\n<channel|>Yes.", ("so", "Yes.", &[]));
    check(GEMMA, "<|channel>thought\n<channel|>Yes.", ("", "Yes.", &[]));
    check(GEMMA, "<|channel>other", ("", "<|channel>other", &[]));
    check(MINIMAX_M3, "<mm:think>so</mm:think>\n\nYes.", ("so", "Yes.", &[]));
    let blocks = "<|content_thinking|>so<|end_message|><|message_model|><|content_text|>Yes.<|end_message|><|content_model_end_sampling|>";
    check(INKLING, blocks, ("so", "Yes.", &[]));
    check(INKLING, "<|content_thinking|>so<|content_model_end_sampling|>", ("so", "", &[]));
    check(INKLING, "Yes and no.<|end_message|>", ("", "Yes and no.", &[]));
    check(INKLING, "Yes", ("", "Yes", &[]));
    check("no markers", " <think>a</think>\n", ("", " <think>a</think>\n", &[]));
    let begun = whole(QWEN, "<|im_start|>assistant\n<think>\n", "so\n</think>\n\nYes.", true);
    assert_eq!((begun.reasoning.as_str(), begun.text.as_str()), ("so", "Yes."));
    let over = whole(QWEN, "<think>\n\n</think>\n\n", "Yes.", true);
    assert_eq!((over.reasoning.as_str(), over.text.as_str()), ("", "Yes."));
    let over = whole(GEMMA, "<|turn>model\n<|channel>thought\n<channel|>", "Yes.", true);
    assert_eq!((over.reasoning.as_str(), over.text.as_str()), ("", "Yes."));
    let begun = whole(INKLING, "<|message_model|><|content_thinking|>", "so<|end_message|>", true);
    assert_eq!((begun.reasoning.as_str(), begun.text.as_str()), ("so", ""));
    let begun =
        whole(COHERE, "<|CHATBOT_TOKEN|><|START_THINKING|>", "so<|END_THINKING|>Yes.", true);
    assert_eq!((begun.reasoning.as_str(), begun.text.as_str()), ("so", "Yes."));
}

#[test]
fn elements_of_reasoning_answers_and_calls() {
    let thinks = "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";
    let answers = "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>";
    let call = |inner: &str| {
        format!("<|open|>call tool=\"f\" index=\"1\"<|sep|>{inner}<|close|>call<|sep|>")
    };
    let argument = |key: &str, kind: &str, value: &str| {
        format!(
            "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{value}<|close|>argument<|sep|>"
        )
    };
    let response = |text: &str| format!("<|open|>response<|sep|>{text}<|close|>response<|sep|>");
    let tools = |calls: &str| format!("<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>");
    const OVER: &str = "<|close|>think<|sep|>";
    const END: &str = "<|close|>message<|sep|><|end_of_msg|>";
    let both = argument("city", "string", "7 & \"8\"") + &argument("list", "array", "[1, 2.5]");
    let json = "<|open|>json type=\"object\"<|sep|>{\"a\": 1}<|close|>json<|sep|>";
    let broken = call("<|open|>argument type=\"string\"<|sep|>a<|close|>argument<|sep|>");
    let long = format!("a<|open|>{}<|sep|>", "b".repeat(3000));
    let cases = [
        (thinks, format!("so\n{OVER}{}{END}", response("Yes.\n")), "so\n", "Yes.\n", None),
        (thinks, format!("{OVER}{}", response("")), "", "", None),
        (answers, "Yes.<|close|>response<|sep|>".to_owned(), "", "Yes.", None),
        (
            answers,
            "1 <|sep|> <|open|>b<|sep|> <|close|>think".to_owned(),
            "",
            "1 <|sep|> <|open|>b<|sep|> ",
            None,
        ),
        (answers, long.clone(), "", &*long, None),
        (
            thinks,
            format!("so{OVER}{}{}", response("Now."), tools(&call(&both))),
            "so",
            "Now.",
            Some(r#"{"city": "7 & \"8\"", "list": [1, 2.5]}"#),
        ),
        (answers, format!("<|close|>response<|sep|>{}{END}", tools(&call(""))), "", "", Some("{}")),
        (
            answers,
            format!("<|close|>response<|sep|>{}", tools(&call(json))),
            "",
            "",
            Some(r#"{"a": 1}"#),
        ),
        (answers, format!("<|close|>response<|sep|>{}", tools(&broken)), "", &*broken, None),
        ("", response("Yes."), "", "Yes.", None),
        ("", "Yes.".to_owned(), "", "Yes.", None),
    ];
    for (prompt, text, reasoning, answer, arguments) in cases {
        let found = whole(KIMI_K3, prompt, &text, true);
        assert_eq!((found.reasoning.as_str(), found.text.as_str()), (reasoning, answer), "{text}");
        let calls = found.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str()));
        let expected = arguments.map(|arguments| ("f", arguments));
        assert_eq!(calls.collect::<Vec<_>>(), Vec::from_iter(expected), "{text}");
    }
    let begun = format(KIMI_K3).call_begins(thinks, Some("f")).unwrap();
    let whole = whole(KIMI_K3, thinks, &format!("{begun}{both}<|close|>call<|sep|>"), true);
    assert_eq!((whole.text.as_str(), whole.calls.len()), ("", 1));
    assert!(format(KIMI_K3).has_headers() && !format(KIMI_K3).has_generic_calls());
}

#[test]
fn tokens_of_markers_are_text() {
    assert_eq!(format(GEMMA).markers(), ["<|channel>", "<channel|>"]);
    assert_eq!(format(COHERE).markers(), ["<|START_THINKING|>", "<|END_THINKING|>"]);
}

#[test]
fn calls_in_each_format() {
    let one = [("f", r#"{"city": "Bern", "days": 2}"#)];
    let two = [("f", r#"{"city": "Bern", "days": 2}"#), ("g", "{}")];
    for (template, text, expected) in [
        (
            QWEN,
            "<think>x</think>\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
            ("x", "I look.", &two[..]),
        ),
        (
            CODER,
            "I look.\n<tool_call>\n<function=f>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            ("", "I look.", &two),
        ),
        (
            GLM,
            "<think>x</think>I look.\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
            ("x", "I look.", &two),
        ),
        (
            MINIMAX,
            "<think>x</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">Bern</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
            ("x", "", &two),
        ),
        (
            DSML,
            "x</think>I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            ("", "x</think>I look.", &one),
        ),
        (
            DEEPSEEK,
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ("", "I look.", &two),
        ),
        (
            DEEPSEEK,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"city\": \"Bern\", \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ("", "", &two),
        ),
        (
            MISTRAL,
            "I look.[TOOL_CALLS]f[ARGS]{\"city\": \"Bern\", \"days\": 2}[TOOL_CALLS]g[ARGS]{}",
            ("", "I look.", &two),
        ),
        (
            MISTRAL,
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}, {\"name\": \"g\", \"arguments\": {}}]",
            ("", "", &two),
        ),
        (
            LLAMA,
            "\n{\"name\": \"f\", \"parameters\": {\"city\": \"Bern\", \"days\": 2}}",
            ("", "", &one),
        ),
        (
            LLAMA,
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"city\": \"Bern\", \"days\": 2}}",
            ("", "", &one),
        ),
        (
            HARMONY,
            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"city\": \"Bern\", \"days\": 2}<|call|>",
            ("x", "I look.", &one),
        ),
        (
            INKLING,
            "f<|content_invoke_tool_json|>{\"name\": \"f\", \"args\": {\"city\": \"Bern\", \"days\": 2}}<|end_message|>",
            ("", "", &one),
        ),
        (
            HARMONY,
            " to=functions.f<|channel|>commentary json<|message|>{\"city\": \"Bern\", \"days\": 2}",
            ("", "", &one),
        ),
    ] {
        check(template, text, expected);
    }
}

#[test]
fn some_formats_name_each_call() {
    let text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1 <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let calls = whole(KIMI, "", text, true).calls;
    let ids = calls.iter().map(|call| (call.id.as_deref().unwrap(), call.name.as_str()));
    assert_eq!(ids.collect::<Vec<_>>(), [("functions.f:0", "f"), ("functions.g:1", "g")]);
    let text = "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}";
    assert_eq!(whole(MISTRAL, "", text, true).calls[0].id.as_deref(), Some("abc123XYZ"));
}

#[test]
fn arguments_may_hold_markers() {
    check(
        QWEN,
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"</tool_call>\"}}</tool_call>",
        ("", "", &[("f", "{\"city\": \"</tool_call>\"}")]),
    );
    check(
        CODER,
        "<tool_call>\n<function=f>\n<parameter=city>\n</parameter>\n</tool_call>\n\n</parameter>\n</function>\n</tool_call>",
        ("", "", &[("f", "{\"city\": \"</parameter>\\n</tool_call>\\n\"}")]),
    );
    check(
        GLM,
        "<tool_call>f<arg_key>city</arg_key><arg_value></arg_value>!</tool_call></arg_value></tool_call>",
        ("", "", &[("f", "{\"city\": \"</arg_value>!</tool_call>\"}")]),
    );
}

#[test]
fn values_have_the_types_of_the_schema() {
    for (key, text, value) in [
        ("city", "2", "\"2\""),
        ("days", "2", "2"),
        ("days", "two", "\"two\""),
        ("days", "2.5", "\"2.5\""),
        ("maybe", "2.5", "2.5"),
        ("maybe", "null", "null"),
        // Values keep their digits and spaces.
        ("list", "[1, {}]", "[1, {}]"),
        ("days", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("list", "[1", "\"[1\""),
        ("other", "true", "\"true\""),
    ] {
        let text = format!(
            "<tool_call><function=f><parameter={key}>{text}</parameter></function></tool_call>"
        );
        let call = &whole(CODER, "", &text, true).calls[0];
        assert_eq!(call.arguments, format!("{{\"{key}\": {value}}}"));
    }
}

#[test]
fn what_is_no_call_is_text() {
    for (template, text) in [
        (QWEN, "<tool_call>{\"name\": 3}</tool_call>"),
        (QWEN, "<tool_call>nothing</tool_call> and more"),
        (QWEN, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"),
        (QWEN, "<tool_call>{\"name\": \"f\", \"argum"),
        (QWEN, "<tool_ca"),
        (CODER, "<tool_call><function=></function></tool_call>"),
        (CODER, "<tool_call><other></tool_call>"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
        (MISTRAL, "[TOOL_CALLS]f"),
        (INKLING, "f or g"),
        (LLAMA, "{\"name\": \"unknown\", \"parameters\": {}}"),
        (LLAMA, "{\"any\": [1]}"),
        (HARMONY, "plain words <|constrain|>"),
    ] {
        check(template, text, ("", text, &[]));
    }
    check(
        HARMONY,
        "<|channel|>commentary to=functions.f<|message|>{\"a\"<|call|>",
        ("", "{\"a\"", &[]),
    );
    // Text after a call that failed is read as any other.
    check(
        QWEN,
        "<tool_call>no</tool_call> <tool_call>{\"name\": \"g\"}</tool_call>",
        ("", "<tool_call>no</tool_call>", &[("g", "{}")]),
    );
}

#[test]
fn a_call_that_was_cut_off_is_text() {
    for (template, text) in [
        (GLM, "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]{}"),
    ] {
        let cut = whole(template, "", text, false);
        assert_eq!((cut.text.as_str(), cut.calls.len()), (text, 0));
        assert_eq!(whole(template, "", text, true).calls.len(), 1);
    }
    let text = "<|channel|>commentary to=functions.f<|message|>{}";
    assert_eq!(whole(HARMONY, "", text, false).calls.len(), 0);
}

#[test]
fn without_tools_calls_are_text() {
    let text = "<tool_call>{\"name\": \"g\"}</tool_call>";
    let mut reader = format(QWEN).reader("", None);
    assert_eq!(read(&mut reader, [text].into_iter(), true).text, text);
    assert!(!format(QWEN).has_generic_calls());
    assert!(format("<think></think>").has_generic_calls());
    let mut reader = format(INKLING).reader("", None);
    let call = "f<|content_invoke_tool_json|>{}<|end_message|>";
    assert_eq!(read(&mut reader, [call].into_iter(), true).text, "{}");
    let mut reader = format(HARMONY).reader("", None);
    let call = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
    assert_eq!(read(&mut reader, [call].into_iter(), true).text, "{}");
}

#[test]
fn an_answer_that_must_be_a_call_begins_with_one() {
    for (template, prompt, rest) in [
        (QWEN, "", "{}}\n</tool_call>"),
        (QWEN, "<think>\n", "{}}</tool_call>"),
        (CODER, "", "</function>\n</tool_call>"),
        (GLM, "", "</tool_call>"),
        (MINIMAX, "", "</invoke>\n</minimax:tool_call>"),
        (KIMI, "", "{}<|tool_call_end|><|tool_calls_section_end|>"),
        (LLAMA, "", "{}}"),
        (HARMONY, "", "{}"),
        (INKLING, "<|message_model|>", "{}}<|end_message|>"),
        (DSML, "", "</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
        ("｜DSML｜", "", "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"),
        (DEEPSEEK, "", "{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("<｜tool▁call▁begin｜>```json", "", "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        (MISTRAL, "", "{}}]"),
        ("[TOOL_CALLS][ARGS]", "", "{}"),
        ("[TOOL_CALLS][CALL_ID][ARGS]", "", "abc123XYZ[ARGS]{}"),
        ("no markers", "", "{}}"),
    ] {
        let format = format(template);
        let begins = format.call_begins(prompt, Some("f")).unwrap();
        let mut reader = format.reader(prompt, Some(schemas()));
        let whole = read(&mut reader, [begins.as_str(), rest].into_iter(), true);
        let names: Vec<&str> = whole.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!((names, whole.text.as_str(), whole.reasoning.as_str()), (vec!["f"], "", ""));
        let any = format.call_begins(prompt, None).unwrap();
        assert!(begins.starts_with(&any), "{begins} {any}");
    }
    assert!(ReplyFormat::default().call_begins("", None).is_none());
}

#[test]
fn calls_without_a_format_of_the_model_are_json() {
    let call = r#"{"name": "f", "arguments": {"days": 2}}"#;
    for (text, before, calls) in [
        (call.to_owned(), "", 1),
        (format!("  {call}\n"), "", 1),
        (format!("{call}\n{call}"), "", 2),
        (format!("{call}, {call}\nI wait for the results."), "", 2),
        (format!("I look.\n```json\n{call}\n```\n"), "I look.", 1),
        (
            "{\"name\": \"unknown\", \"arguments\": {}}".to_owned(),
            "{\"name\": \"unknown\", \"arguments\": {}}",
            0,
        ),
        ("{\"answer\": 42}".to_owned(), "{\"answer\": 42}", 0),
        ("```json\n[1]\n``` is a list.".to_owned(), "```json\n[1]\n``` is a list.", 0),
        ("Two.".to_owned(), "Two.", 0),
    ] {
        let found = whole("<think></think>", "", &text, true);
        assert_eq!((found.text.trim(), found.calls.len()), (before, calls), "{text}");
    }
    // A template that mentions no tools shows none, whatever markers it has.
    let template = ChatTemplate::from_files(None, Some(b"<tool_call>")).unwrap().unwrap();
    assert!(ReplyFormat::of(&template).has_generic_calls());
}
