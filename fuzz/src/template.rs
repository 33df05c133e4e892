//! Any bytes as a chat template, and as a `tokenizer_config.json`, which has one.

use sws_model::text::{ChatOptions, ChatTemplate, Message};

/// True if they were accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let both = [(None, Some(data)), (Some(data), None)];
    both.map(|(config, template)| passes(config, template)).contains(&true)
}

fn passes(config: Option<&[u8]>, template: Option<&[u8]>) -> bool {
    let Ok(Some(template)) = ChatTemplate::from_files(config, template) else { return false };
    let say = |role: &str, content: &str| Message { role: role.into(), content: content.into() };
    let messages = [say("system", "Be brief."), say("user", "Hi <s> \u{e9}"), say("assistant", "")];
    let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
    let rendered = template.render(&messages, &options);
    if let Err(error) = &rendered {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    rendered.is_ok()
}
