//! `sws launch`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{anyhow, bail};
use serde_json::Value;

use super::print;
use crate::args::{Client, Launch};
use crate::http::Address;

/// Most bytes of an answer.
const MOST_BYTES: u64 = 1 << 20;
/// Milliseconds that programs wait for an answer: long prompts take their time.
const HOUR: &str = "3600000";

/// What a program needs to know of a server.
struct Served {
    url: String,
    key: String,
    model: String,
    context: Option<u64>,
}

/// How a program is started.
struct Start {
    program: &'static str,
    variables: Vec<(&'static str, String)>,
    /// Set by others, and in the way.
    unset: &'static [&'static str],
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Launch) -> anyhow::Result<ExitCode> {
    let start = start(args.client, served(args)?);
    if args.print {
        print(&start.shown(&args.rest))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new(start.program);
    command.args(&start.arguments).args(&args.rest).envs(start.variables);
    start.unset.iter().for_each(|name| {
        command.env_remove(name);
    });
    // Returns only if the program could not take this one's place.
    let error = command.exec();
    let program = start.program;
    match error.kind() {
        ErrorKind::NotFound => bail!(
            "`{program}` is not installed, or not in PATH; install it, or see its settings with --print"
        ),
        _ => bail!("`{program}` cannot be started: {error}; see its settings with --print"),
    }
}

fn start(client: Client, served: Served) -> Start {
    let Served { url, key, model, context } = served;
    match client {
        Client::Claude => Start {
            program: "claude",
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
        Client::Codex => {
            // Strings of TOML; JSON's escapes are among those of TOML.
            let text = |text: &str| Value::from(text).to_string();
            let address = text(&format!("{url}/v1"));
            let provider = [
                "name=\"sws\"".to_owned(),
                format!("base_url={address}"),
                "env_key=\"SWS_API_KEY\"".to_owned(),
                "wire_api=\"responses\"".to_owned(),
                format!("stream_idle_timeout_ms={HOUR}"),
            ];
            let mut settings = vec![
                format!("model={}", text(&model)),
                "model_provider=\"sws\"".to_owned(),
                format!("model_providers.sws={{{}}}", provider.join(",")),
            ];
            settings.extend(context.map(|context| format!("model_context_window={context}")));
            Start {
                program: "codex",
                variables: vec![("SWS_API_KEY", key)],
                unset: &[],
                arguments: settings.into_iter().flat_map(|it| ["-c".to_owned(), it]).collect(),
            }
        }
        Client::Aider => Start {
            program: "aider",
            variables: vec![("OPENAI_API_BASE", format!("{url}/v1")), ("OPENAI_API_KEY", key)],
            unset: &[],
            arguments: ["--model", &format!("openai/{model}"), "--timeout", "3600"]
                .map(str::to_owned)
                .to_vec(),
        },
    }
}

impl Start {
    /// Lines for a shell.
    fn shown(&self, rest: &[OsString]) -> String {
        let mut text = String::new();
        for name in self.unset {
            text += &format!("unset {name}\n");
        }
        for (name, value) in &self.variables {
            text += &format!("export {name}={}\n", quoted(value));
        }
        let rest = rest.iter().map(|word| quoted(&word.to_string_lossy()));
        let words = self.arguments.iter().map(|word| quoted(word)).chain(rest);
        text + &[self.program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
            + "\n"
    }
}

/// A word of a shell's command line.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn served(args: &Launch) -> anyhow::Result<Served> {
    for (option, given) in [("--url", Some(&args.url)), ("--api-key", args.api_key.as_ref())] {
        if given.is_some_and(|given| given.contains(|c: char| c.is_control())) {
            bail!("{option} has a control character; give it without");
        }
    }
    let url = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let Some((scheme, place)) = url.split_once("://") else {
        bail!("--url {}: give an address such as http://127.0.0.1:8080", args.url);
    };
    let key = args.api_key.clone().unwrap_or_else(|| "any".to_owned());
    let (model, context) = match (&args.name, scheme) {
        (Some(name), "http" | "https") => (name.clone(), None),
        (None, "http") => {
            let models = Address::of(place).get("/v1/models", &key).and_then(|body| body.json(MOST_BYTES)).map_err(|why| {
                anyhow!("{url} does not say which model it has: {why}; start a server with `sws serve MODEL`, or name another with --url")
            })?;
            let model = &models["data"][0];
            let Some(id) = model["id"].as_str() else {
                bail!("the server at {url} names no model; give its id with --name");
            };
            (id.to_owned(), model["max_model_len"].as_u64())
        }
        (None, "https") => {
            bail!("a server with TLS is not asked for its model; give its id with --name")
        }
        _ => bail!("--url {}: only http and https are known", args.url),
    };
    Ok(Served { url, key, model, context })
}

#[cfg(test)]
mod tests {
    use super::*;

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
