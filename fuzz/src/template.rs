//! Any bytes as a chat template, and as a `tokenizer_config.json` that contains one.

use sws_text::{ChatOptions, ChatTemplate, Message};

/// True if either was accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let both = [(None, Some(data)), (Some(data), None)];
    both.map(|(config, template)| passes(config, template)).contains(&true)
}

fn passes(config: Option<&[u8]>, template: Option<&[u8]>) -> bool {
    let Ok(Some(template)) = ChatTemplate::from_files(config, template) else { return false };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hi <s> \u{e9}"),
        Message::new("assistant", ""),
    ];
    let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
    let rendered = template.render(&messages, &options);
    if let Err(error) = &rendered {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    rendered.is_ok()
}
