//! A server without a network, of the bundled model, which is in memory as a whole.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use sws::{Model, Needs, Options, Streaming, TextCodec};
use sws_serve::{Answered, ModelNames, Offline, ServerConfig, ServerLimits};
use sws_text::ChatTemplate;

/// A template of chats with reasoning and tool calls.
const TEMPLATE: &[u8] = b"{# <think></think><tool_call> #}\
    {% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";

/// The server, which is started once.
fn server() -> &'static Offline {
    static SERVER: OnceLock<Offline> = OnceLock::new();
    SERVER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let shards = ["..", "../.."].map(|up| root.join(up).join("shards/tales-moe"));
        let shards = shards.iter().find(|shards| shards.exists()).unwrap();
        let model = Model::open(shards).unwrap();
        let template = ChatTemplate::from_files(None, Some(TEMPLATE)).unwrap();
        let text = TextCodec::open(&model).unwrap().while_loaded(template);
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let options =
            Options { resident: true, context: Some(512), streaming, ..Options::default() };
        let needs = Needs { texts: 2, all_logits: true, ..Needs::default() };
        let model = model.with(options).needs(needs).text(text).load().unwrap();
        Offline::start(config(), model, needs).unwrap()
    })
}

fn config() -> ServerConfig {
    let limits =
        ServerLimits { body: 64 << 10, texts: 4, new_tokens: Some(300), ..ServerLimits::default() };
    ServerConfig {
        address: ([127, 0, 0, 1], 0).into(),
        models: vec![ModelNames { id: "tales".to_owned(), aliases: Vec::new() }],
        keys: Vec::new(),
        hosts: Vec::new(),
        origins: Vec::new(),
        open_metrics: false,
        open: false,
        limits,
        stop: Arc::new(|| false),
        log: Arc::new(|_| ()),
    }
}

/// The response to a request. Refusals are one sentence, and no request is the server's failure.
pub(crate) fn post(path: &str, body: &[u8]) -> Answered {
    let answered = server().post(path, body);
    let Answered { status, body } = &answered;
    // Some endpoints offer nothing.
    assert!(*status < 500 || *status == 501, "{path}: {status} {}", String::from_utf8_lossy(body));
    if *status != 200 {
        let refusal: Value = serde_json::from_slice(body).unwrap();
        let message = refusal["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains('\n'), "{path}: {message}");
    }
    answered
}

/// The data of the events of a stream, each with its name.
pub(crate) fn events(body: &[u8]) -> Vec<(Option<&str>, &str)> {
    let text = std::str::from_utf8(body).unwrap();
    assert!(text.ends_with("\n\n"), "a stream ends with an event: {text}");
    let mut events = Vec::new();
    for block in text.split_terminator("\n\n") {
        let (mut name, mut data) = (None, None);
        for line in block.split('\n') {
            match line.split_once(": ") {
                Some(("event", named)) => assert!(name.replace(named).is_none(), "{block}"),
                Some(("data", sent)) => assert!(data.replace(sent).is_none(), "{block}"),
                Some(("", _)) => {}
                _ => panic!("no line of an event: {line}"),
            }
        }
        events.extend(data.map(|data| (name, data)));
    }
    events
}
