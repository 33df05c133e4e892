//! `sws launch`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{Command, ExitCode};

use anyhow::bail;
use serde_json::Value;
use sws_os::process::become_program;

use super::print;
use crate::args::{Launch, LaunchClient};
use crate::http::ServerAddress;
use crate::terminal::note;

/// Most bytes of an answer.
const MOST_BYTES: u64 = 1 << 20;
/// Milliseconds that programs wait for an answer: long prompts take their time.
const HOUR: &str = "3600000";

/// Context of the server that a refusal proposes: room for a prompt, and for the work.
const PROPOSED: u64 = 32768;

/// What a program needs to know of a server.
#[derive(Default)]
struct ServerFacts {
    url: String,
    key: String,
    model: String,
    context: Option<u64>,
    /// The longest context of its model.
    longest: Option<u64>,
    /// False if its model has no chat template. None if the server does not say.
    has_chat: Option<bool>,
    /// False if its model cannot call tools. None if the server does not say.
    has_tools: Option<bool>,
}

/// What a program needs of a server.
struct ProgramNeeds {
    /// Tokens of context: those of its own prompts, which it sends before anything is typed, and room for
    /// a conversation.
    context: u64,
    tools: bool,
}

/// How a program is started.
struct ProgramStart {
    program: &'static str,
    variables: Vec<(&'static str, String)>,
    /// Set by others, and in the way.
    unset: &'static [&'static str],
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Launch) -> anyhow::Result<ExitCode> {
    let served = served(args)?;
    let lack = lack(args.client, &served);
    let start = start(args.client, served);
    match lack {
        Some(_) if args.force => {}
        Some(lack) if args.print => note!("sws: {lack}"),
        Some(lack) => bail!("{lack}, or go on with --force"),
        None => {}
    }
    if args.print {
        print(&start.render(&args.rest))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new(start.program);
    command.args(&start.arguments).args(&args.rest).envs(start.variables);
    for name in start.unset {
        command.env_remove(name);
    }
    // Returns only if the program could not take this one's place.
    let error = become_program(&mut command);
    let program = start.program;
    match error.kind() {
        ErrorKind::NotFound => bail!(
            "`{program}` is not installed, or not in PATH; install it, or see its settings with --print"
        ),
        _ => bail!("`{program}` cannot be started: {error}; see its settings with --print"),
    }
}

impl LaunchClient {
    /// Name of the program.
    fn program(self) -> &'static str {
        match self {
            LaunchClient::Claude => "claude",
            LaunchClient::Codex => "codex",
            LaunchClient::Aider => "aider",
        }
    }

    fn needs(self) -> ProgramNeeds {
        match self {
            LaunchClient::Claude | LaunchClient::Codex => {
                ProgramNeeds { context: 16384, tools: true }
            }
            // It edits files by text in its answers.
            LaunchClient::Aider => ProgramNeeds { context: 8192, tools: false },
        }
    }
}

/// What the program needs and the server lacks, with the remedy.
fn lack(client: LaunchClient, served: &ServerFacts) -> Option<String> {
    let program = client.program();
    let model = &served.model;
    let url = &served.url;
    let needs = client.needs();
    if served.has_chat == Some(false) {
        return Some(format!(
            "`{program}` holds conversations, and `{model}` at {url} has no chat template; serve another model, as in `sws serve Qwen/Qwen3-30B-A3B --context {PROPOSED}`"
        ));
    }
    if needs.tools && served.has_tools == Some(false) {
        return Some(format!(
            "`{program}` works by calling tools, and the chat template of `{model}` at {url} has none in a known format; serve another model, as in `sws serve Qwen/Qwen3-30B-A3B --context {PROPOSED}`"
        ));
    }
    let context = served.context?;
    if context >= needs.context {
        return None;
    }
    let needed = needs.context;
    let longest = served.longest.unwrap_or(u64::MAX);
    let remedy = match longest < needed {
        true => format!("`{model}` has at most {longest}; serve another model"),
        false => {
            let proposed = PROPOSED.min(longest);
            format!("start the server again with `sws serve MODEL --context {proposed}`")
        }
    };
    Some(format!(
        "`{program}` needs a context of at least {needed} tokens, and the server at {url} has {context}; {remedy}"
    ))
}

fn start(client: LaunchClient, served: ServerFacts) -> ProgramStart {
    let program = client.program();
    let ServerFacts { url, key, model, context, .. } = served;
    match client {
        LaunchClient::Claude => ProgramStart {
            program,
            variables: vec![
                ("ANTHROPIC_BASE_URL", url),
                ("ANTHROPIC_AUTH_TOKEN", key),
                ("ANTHROPIC_MODEL", model.clone()),
                ("ANTHROPIC_DEFAULT_OPUS_MODEL", model.clone()),
                ("ANTHROPIC_DEFAULT_SONNET_MODEL", model.clone()),
                ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model),
                ("API_TIMEOUT_MS", HOUR.to_owned()),
                // Lines that change with each request would make it compute the whole prompt again.
                ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0".to_owned()),
                ("CLAUDE_CODE_TOTAL_TOKENS_REMINDER", "off".to_owned()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ],
            unset: &["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"],
            arguments: Vec::new(),
        },
        LaunchClient::Codex => {
            let address = toml_string(&format!("{url}/v1"));
            let provider = [
                "name=\"sws\"".to_owned(),
                format!("base_url={address}"),
                "env_key=\"SWS_API_KEY\"".to_owned(),
                "wire_api=\"responses\"".to_owned(),
                format!("stream_idle_timeout_ms={HOUR}"),
            ];
            let mut settings = vec![
                format!("model={}", toml_string(&model)),
                "model_provider=\"sws\"".to_owned(),
                format!("model_providers.sws={{{}}}", provider.join(",")),
            ];
            if let Some(context) = context {
                settings.push(format!("model_context_window={context}"));
            }
            let mut arguments = Vec::with_capacity(2 * settings.len());
            for setting in settings {
                arguments.push("-c".to_owned());
                arguments.push(setting);
            }
            ProgramStart { program, variables: vec![("SWS_API_KEY", key)], unset: &[], arguments }
        }
        LaunchClient::Aider => ProgramStart {
            program,
            variables: vec![("OPENAI_API_BASE", format!("{url}/v1")), ("OPENAI_API_KEY", key)],
            unset: &[],
            arguments: ["--model", &format!("openai/{model}"), "--timeout", "3600"]
                .map(str::to_owned)
                .to_vec(),
        },
    }
}

/// A string of TOML; JSON's escapes are among those of TOML.
fn toml_string(text: &str) -> String {
    Value::from(text).to_string()
}

impl ProgramStart {
    /// Lines for a shell.
    fn render(&self, rest: &[OsString]) -> String {
        let mut text = String::new();
        for name in self.unset {
            text += &format!("unset {name}\n");
        }
        for (name, value) in &self.variables {
            text += &format!("export {name}={}\n", quoted(value));
        }
        text += self.program;
        for word in &self.arguments {
            text += &format!(" {}", quoted(word));
        }
        for word in rest {
            text += &format!(" {}", quoted(&word.to_string_lossy()));
        }
        text + "\n"
    }
}

/// A word of a shell's command line.
fn quoted(word: &str) -> String {
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// True for a character that no shell obeys.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c)
}

fn served(args: &Launch) -> anyhow::Result<ServerFacts> {
    for (option, given) in [("--url", Some(&args.url)), ("--api-key", args.api_key.as_ref())] {
        if let Some(given) = given
            && given.contains(char::is_control)
        {
            bail!("{option} has a control character; give it without");
        }
    }
    let url = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let Some((scheme, place)) = url.split_once("://") else {
        bail!("--url {}: give an address such as http://127.0.0.1:8080", args.url);
    };
    let key = args.api_key.as_deref().unwrap_or("any").to_owned();
    match (&args.name, scheme) {
        (Some(name), "http" | "https") => {
            Ok(ServerFacts { url, key, model: name.clone(), ..ServerFacts::default() })
        }
        (None, "http") => {
            let models = match models_of(place, &key) {
                Ok(models) => models,
                Err(why) => bail!(
                    "cannot ask {url} for its model ({why}); start a server with `sws serve MODEL`, or name another with --url"
                ),
            };
            let model = &models["data"][0];
            let Some(id) = model["id"].as_str() else {
                bail!("the server at {url} names no model; give its id with --name");
            };
            Ok(ServerFacts {
                model: id.to_owned(),
                context: model["max_model_len"].as_u64(),
                longest: model["meta"]["n_ctx_train"].as_u64(),
                has_chat: has(model, "chat"),
                has_tools: has(model, "tools"),
                url,
                key,
            })
        }
        (None, "https") => {
            bail!("a server with TLS is not asked for its model; give its id with --name")
        }
        _ => bail!("--url {}: only http and https are known", args.url),
    }
}

/// What a server tells of its models.
fn models_of(place: &str, key: &str) -> anyhow::Result<Value> {
    ServerAddress::of(place).get("/v1/models", key)?.json(MOST_BYTES)
}

/// True if a model has a capability; `None` if the server does not say.
fn has(model: &Value, capability: &str) -> Option<bool> {
    let known = model["capabilities"].as_array()?;
    Some(known.iter().any(|it| it == capability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_a_program_cannot_use_are_refused_with_a_remedy() {
        let served = |context, longest, has_tools| ServerFacts {
            model: "m".to_owned(),
            context: Some(context),
            longest: Some(longest),
            has_tools,
            ..ServerFacts::default()
        };
        for (client, served, words) in [
            (
                LaunchClient::Claude,
                served(4096, 40960, Some(true)),
                Some("`sws serve MODEL --context 32768`"),
            ),
            (
                LaunchClient::Codex,
                served(16383, 20000, Some(true)),
                Some("`sws serve MODEL --context 20000`"),
            ),
            (
                LaunchClient::Codex,
                served(4096, 8192, None),
                Some("`m` has at most 8192; serve another"),
            ),
            (LaunchClient::Claude, served(32768, 40960, Some(false)), Some("chat template of `m`")),
            (LaunchClient::Aider, served(8191, 40960, Some(false)), Some("at least 8192 tokens")),
            (LaunchClient::Aider, served(8192, 8192, Some(false)), None),
            (
                LaunchClient::Aider,
                ServerFacts { has_chat: Some(false), ..served(8192, 8192, Some(false)) },
                Some("`m` at  has no chat template"),
            ),
            (LaunchClient::Claude, served(16384, 40960, Some(true)), None),
            (LaunchClient::Codex, served(16384, 40960, None), None),
            // Of a server that was not asked, or is another program.
            (LaunchClient::Claude, ServerFacts::default(), None),
        ] {
            let found = lack(client, &served);
            assert_eq!(found.is_some(), words.is_some(), "{client:?}: {found:?}");
            assert!(found.iter().all(|it| it.contains(words.unwrap())), "{client:?}: {found:?}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
