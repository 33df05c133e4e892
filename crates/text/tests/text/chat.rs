//! Chat templates: the same output as transformers, and protection against hostile templates.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use sws_text::{ChatError, ChatOptions, ChatTemplate, Json, Message};

fn template(text: &str) -> ChatTemplate {
    let config =
        json!({"chat_template": text, "bos_token": "<s>", "eos_token": {"content": "</s>"}});
    ChatTemplate::from_files(Some(config.to_string().as_bytes()), None).unwrap().unwrap()
}

fn says(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

fn render(text: &str) -> Result<String, ChatError> {
    template(text).render(&[says("user", "Hi"), says("assistant", " Yo ")], &ChatOptions::default())
}

#[test]
fn templates_follow_python_exactly() {
    let cases = [
        ("{{ bos_token }}{{ eos_token }}|{{ pad_token }}|", "<s></s>||"),
        (
            "{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\n",
            "user\nassistant\n",
        ),
        ("{{ messages[-1]['content'].strip() + '!' }}", "Yo!"),
        ("{{ messages[::-1][0].role }} {{ 'abc'[::-1] }} {{ 'abc'[1:] }}", "assistant cba bc"),
        (
            "{{ true }} {{ none }} {{ 1.0 }} {{ 1e20 }} {{ 7 // 2 }} {{ 7 / 2 }}",
            "True None 1.0 1e+20 3 3.5",
        ),
        ("{{ [1, 'a', none] }} {{ {'k': true} }} {{ (1,) }}", "[1, 'a', None] {'k': True} (1,)"),
        (
            "{{ 'x' ~ none ~ 1.5 }} {{ [1, true] | join('-') }} {{ true | string }}",
            "xNone1.5 1-True True",
        ),
        (r#"{{ {"b": [1, 2.0], "a": "é<\n"} | tojson }}"#, r#"{"b": [1, 2.0], "a": "é<\n"}"#),
        ("{{ {'a': [1, {}]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"),
        (r#"{{ 'é🎉' | tojson(ensure_ascii=true) }}"#, r#""\u00e9\ud83c\udf89""#),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') + f('b') }}", "<a><b>"),
        (
            "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("a{% generation %}b{%- endgeneration %} c", "ab c"),
        ("{{ 'a' in 'cat' and 3 not in [1] and 1 < 2 < 3 }}", "True"),
        (
            "{{ messages | map(attribute='role') | join(',') }} {{ [3, 1] | sort | first }}",
            "user,assistant 1",
        ),
        (
            "{{ 'a,b'.split(',') }} {{ 'aXb'.replace('X', '-') }} {{ ' a' | trim }}",
            "['a', 'b'] a-b a",
        ),
        (
            "{{ 'x=%s' | format(3) }} {{ 'a\nb' | indent(2) }} {{ messages | length }}",
            "x=3 a\n  b 2",
        ),
        ("{{ strftime_now('%d %b %Y %H:%M') }}", "01 Jan 1970 00:00"),
        ("{{ tools is none }} {{ nothing is defined }} {{ nothing or 'else' }}", "True False else"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
    ];
    for (text, expected) in cases {
        assert_eq!(render(text).map_err(|e| e.to_string()).as_deref(), Ok(expected), "{text}");
    }
}

#[derive(Deserialize)]
struct Goldens {
    now: String,
    conversations: std::collections::BTreeMap<String, Vec<Json>>,
    templates: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    name: String,
    template: String,
    special_tokens: serde_json::Map<String, serde_json::Value>,
    renders: Vec<Render>,
}

#[derive(Deserialize)]
struct Render {
    conversation: String,
    add_generation_prompt: bool,
    variables: std::collections::BTreeMap<String, Json>,
    text: Option<String>,
    raised: Option<String>,
}

#[derive(Deserialize)]
struct Formats {
    cases: Vec<FormatCase>,
}

#[derive(Deserialize)]
struct FormatCase {
    format: String,
    messages: Vec<Json>,
    tools: Option<Json>,
    variables: std::collections::BTreeMap<String, Json>,
    prompt: String,
    /// The parts of the prompt that are encoded on their own, as text.
    #[serde(default)]
    literal: Vec<String>,
}

#[test]
fn reasoning_is_switched_by_variables_that_change_the_prompt() {
    let cases = [
        (
            "{% if enable_thinking is defined and not enable_thinking %}a{% endif %}",
            Some("enable_thinking=False"),
        ),
        (
            "{% set enable_thinking = enable_thinking | default(true) %}{{ enable_thinking }}",
            Some("enable_thinking=False"),
        ),
        (
            "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}",
            Some("thinking=False"),
        ),
        (
            "{% generation %}{{ reasoning_effort | default('medium') }}{% endgeneration %}",
            Some("reasoning_effort=low"),
        ),
        (
            "{% if reasoning_effort == 'none' %}a{% else %}b{% endif %}",
            Some("reasoning_effort=none"),
        ),
        (
            "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('no') }}{% endif %}{{ reasoning_effort }}",
            Some("reasoning_effort=none"),
        ),
        ("{{ messages[0].thinking }} reasoning_effort enable_thinking", None),
        ("{% set enable_thinking = true %}{{ enable_thinking }}", None),
        ("{{ raise_exception('never') }}", None),
    ];
    for (text, expected) in cases {
        let template = ChatTemplate::from_files(None, Some(text.as_bytes())).unwrap().unwrap();
        let set = template.thinking(false).map(|set| {
            let words: Vec<_> = set.iter().map(|(name, value)| format!("{name}={value}")).collect();
            words.join(" ")
        });
        assert_eq!(set.as_deref(), expected, "{text}");
    }
    for format in ["deepseek_v32", "deepseek_v4", "kimi_k3"] {
        assert!(ChatTemplate::of_model_type(format).unwrap().thinking(true).is_some());
    }
}

/// Models that are published with a program in place of a template.
#[test]
fn formats_without_a_template_render_like_their_programs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/chat_formats.json");
    let goldens: Formats = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(goldens.cases.len(), 49);
    for case in goldens.cases {
        let options = ChatOptions {
            add_generation_prompt: true,
            tools: case.tools,
            variables: case.variables.into_iter().collect(),
            now: 0,
        };
        let template = ChatTemplate::of_model_type(&case.format).unwrap();
        let prompt = template.prompt(&case.messages, &options).unwrap();
        assert_eq!(prompt.text(), case.prompt);
        let literal = prompt.parts().filter(|(_, is_literal)| *is_literal);
        assert_eq!(literal.map(|(text, _)| text).collect::<Vec<_>>(), case.literal);
    }
    assert!(ChatTemplate::of_model_type("llama").is_none());
}

#[test]
fn templates_render_like_transformers() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/chat_templates.json");
    let goldens: Goldens = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let now: jiff::civil::DateTime = goldens.now.parse().unwrap();
    let now = now.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second();
    let mut renders = 0;
    for golden in goldens.templates {
        let mut config = golden.special_tokens;
        config.insert("chat_template".to_owned(), golden.template.into());
        let config = serde_json::to_vec(&config).unwrap();
        let template = ChatTemplate::from_files(Some(&config), None).unwrap().unwrap();
        for render in golden.renders {
            let mut variables: Vec<_> = render.variables.into_iter().collect();
            let tools = variables.iter().position(|(name, _)| name == "tools");
            let options = ChatOptions {
                add_generation_prompt: render.add_generation_prompt,
                tools: tools.map(|at| variables.remove(at).1),
                variables,
                now,
            };
            let found = template.render(&goldens.conversations[&render.conversation], &options);
            let found = match found {
                Ok(text) => (Some(text), None),
                Err(ChatError::Raised(message)) => (None, Some(message)),
                Err(e) => panic!("{} of {}: {e}", golden.name, render.conversation),
            };
            assert_eq!(
                found,
                (render.text, render.raised),
                "{} of {}",
                golden.name,
                render.conversation
            );
            renders += 1;
        }
    }
    assert!(renders > 300, "{renders}");
}

#[test]
fn the_template_is_found_where_checkpoints_keep_it() {
    let named = json!({"bos_token": "^", "chat_template": [
        {"name": "default", "template": "{{ bos_token }}plain"},
        {"name": "tool_use", "template": "tools: {{ tools[0] }}"},
    ]})
    .to_string();
    let render = |config: Option<&str>, file: Option<&str>, tools: Option<Json>| {
        let found = ChatTemplate::from_files(config.map(str::as_bytes), file.map(str::as_bytes));
        let options = ChatOptions { tools, ..ChatOptions::default() };
        found.unwrap().map(|template| template.render(&[says("user", "")], &options).unwrap())
    };
    // tokenizer_config.json, chat_template.jinja, tools, and the prompt.
    type Case<'a> = (Option<&'a str>, Option<&'a str>, Option<Json>, Option<&'a str>);
    let cases: [Case<'_>; 7] = [
        (None, None, None, None),
        (Some("{}"), None, None, None),
        (Some(r#"{"chat_template": null}"#), None, None, None),
        (Some(r#"{"chat_template": "a"}"#), Some("b"), None, Some("b")),
        (None, Some("{{ bos_token }}b"), None, Some("b")),
        (Some(&named), None, None, Some("^plain")),
        (Some(&named), None, Some(vec![Json::from(1)].into()), Some("tools: 1")),
    ];
    for (config, file, tools, expected) in cases {
        assert_eq!(render(config, file, tools).as_deref(), expected, "{config:?} {file:?}");
    }
}

#[test]
fn damaged_files_are_refused_in_a_sentence() {
    let cases: [(&str, Option<&str>, &str); 9] = [
        ("[", None, "tokenizer_config.json is damaged ("),
        (r#"{"chat_template": 7}"#, None, "tokenizer_config.json is damaged ("),
        (r#"{"chat_template": [{"name": "odd", "template": ""}]}"#, None, "names no `default`"),
        ("{}", Some("{% if %}"), "the chat template is damaged ("),
        ("{}", Some("{{ 'a"), "the chat template is damaged ("),
        ("{}", Some("{% for m in messages %}"), "the chat template is damaged ("),
        ("{}", Some("{% include 'other' %}"), "has no block, include, import or extends"),
        ("{}", Some(&"x".repeat(300_000)), "the chat template has 300000 bytes"),
        ("{}", Some(&"{{ (".repeat(50_000)), "the chat template is damaged ("),
    ];
    for (config, file, expected) in cases {
        let found = ChatTemplate::from_files(Some(config.as_bytes()), file.map(str::as_bytes));
        let error = found.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains('\n') && error.len() < 700, "{error}");
    }
}

#[test]
fn a_template_can_raise_and_fail() {
    let cases = [
        (
            "{{ raise_exception('Roles must\nalternate') }}",
            "the chat template refuses these messages: Roles must alternate",
        ),
        (
            "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}",
            "refuses these messages: deep",
        ),
        ("{{ nothing.at.all }}", "the chat template fails (undefined value"),
        ("{{ 1 + 'a' }}", "the chat template fails ("),
        ("{{ 'a' | unheard_of }}", "unknown filter"),
        ("{{ strftime_now('%Q') }}", "the chat template fails ("),
        ("{{ '%99999d' | format(1) }}", "a width in a format is too large"),
        ("{{ ['a', 'b'] | sum }}", "sum of strings"),
    ];
    for (text, expected) in cases {
        let error = render(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

/// Each of these would run forever, or take more memory than there is.
#[test]
fn a_hostile_template_is_stopped() {
    let forever = "{% for i in range(100000) %}";
    let end = "{% endfor %}";
    let ns = "{% set ns = namespace(s='aaaaaaaa', l=[1]) %}";
    let cases: Vec<(String, &str)> = vec![
        (format!("{forever}{forever}{end}{end}"), "does not end"),
        (format!("{forever}{forever}x{end}{end}"), "does not end"),
        (format!("{forever}{}{end}", "x".repeat(100_000)), "makes too much text"),
        (format!("{ns}{forever}{{% set ns.s = ns.s ~ ns.s %}}{end}"), "makes too much text"),
        (format!("{ns}{forever}{{% set ns.s = ns.s + ns.s %}}{end}"), "makes too much text"),
        (format!("{ns}{forever}{{% set ns.s = ns.s * 9 %}}{end}"), "makes too much text"),
        (
            format!("{ns}{forever}{{% set ns.s = ns.s.replace('a', ns.s) %}}{end}"),
            "makes too much text",
        ),
        (
            format!("{ns}{forever}{{% set ns.s = ns.s | replace('a', ns.s) %}}{end}"),
            "makes too much text",
        ),
        (
            format!("{ns}{forever}{{% set ns.s = ns.s.join([ns.s, ns.s]) %}}{end}"),
            "makes too much text",
        ),
        (
            format!("{ns}{forever}{{% set ns.s = [ns.s, ns.s] | join %}}{end}"),
            "makes too much text",
        ),
        (
            format!("{ns}{forever}{{% set ns.s = '%s%s' | format(ns.s, ns.s) %}}{end}"),
            "makes too much text",
        ),
        (
            format!("{ns}{forever}{{% set ns.s = '{{}}{{}}'.format(ns.s, ns.s) %}}{end}"),
            "makes too much text",
        ),
        (
            format!("{ns}{forever}{{% set ns.s = ns.s | indent(ns.s | length, true) %}}{end}"),
            "makes too much text",
        ),
        (
            format!(
                "{ns}{forever}{{% set x %}}{{{{ ns.s }}}}{{{{ ns.s }}}}{{% endset %}}{{% set ns.s = x %}}{end}"
            ),
            "makes too much text",
        ),
        (format!("{ns}{forever}{{% set ns.l = ns.l + ns.l %}}{end}"), "makes too much text"),
        (format!("{ns}{forever}{{% set ns.l = ns.l * 9 %}}{end}"), "makes too much text"),
        (
            format!("{ns}{forever}{{% set ns.l = [ns.l, ns.l] %}}{{{{ ns.l == [] }}}}{end}"),
            "makes too much text",
        ),
        (
            format!(
                "{ns}{{% for i in range(60) %}}{{% set ns.l = [ns.l, ns.l] %}}{end}{{{{ ns.l }}}}"
            ),
            "makes too much text",
        ),
        (
            format!(
                "{ns}{{% for i in range(60) %}}{{% set ns.l = [ns.l, ns.l] %}}{end}{{{{ ns.l | tojson }}}}"
            ),
            "makes too much text",
        ),
        (
            format!(
                "{ns}{{% for i in range(60) %}}{{% set ns.l = [ns.l, ns.l] %}}{end}{{{{ ns.l ~ '' }}}}"
            ),
            "makes too much text",
        ),
        (format!("{ns}{forever}{{% set ns.l = [ns.l] %}}{end}{{{{ ns.l }}}}"), "nested too deeply"),
        (format!("{ns}{forever}{forever}{{% set ns.l = [ns.l] %}}{end}{end}"), "does not end"),
        ("{{ 'a' * 100000000 }}{{ 'a' * 100000000 }}".repeat(2000), "makes too much text"),
        ("{{ [1] | tojson(indent=100000000000) }}".to_owned(), "makes too much text"),
        ("{{ [1] | batch(100000000000, 0) }}".to_owned(), "makes too much text"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(), "recursion limit exceeded"),
        (format!("{{{{ 1{} }}}}", "+1".repeat(100_000)), ""),
    ];
    for (text, expected) in cases {
        let start: String = text.chars().take(160).collect();
        match render(&text) {
            Ok(_) if expected.is_empty() => {}
            Ok(text) => panic!("{start}: gave {} bytes", text.len()),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(expected), "{start}: {error}");
                assert!(!error.contains('\n') && error.len() < 700, "{error}");
            }
        }
    }
}
