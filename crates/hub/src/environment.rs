//! Settings of the hub in the environment, with the names and meanings of Python's
//! `huggingface_hub`.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use sws_format::open_regular;
use sws_os::places;

use crate::HubError;

const ENDPOINT: &str = "https://huggingface.co";
/// Default time limit for a silent connection. Python's default of 10 s is exceeded by slow disks
/// of the hub.
const SILENCE: Duration = Duration::from_secs(60);
const MAX_SILENCE: u64 = 86_400;
/// Most bytes of a file with a token.
const MAX_TOKEN_FILE: u64 = 4096;

/// Settings of the hub in the environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Address of the hub, without a slash at its end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Token of the user's account (`HF_TOKEN`, or the file `HF_TOKEN_PATH`).
    pub token: Option<HubToken>,
    /// The cache (`HF_HUB_CACHE`, or `hub` in `HF_HOME`). None without a home directory.
    pub cache: Option<PathBuf>,
    /// True if the network must not be used (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Address of the proxy (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`), and the hosts without one.
    pub proxy: Option<ProxySetting>,
    /// Time without a byte after which a connection is cut (`HF_HUB_DOWNLOAD_TIMEOUT`).
    pub silence: Duration,
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxySetting {
    /// Address, possibly with a password.
    pub address: String,
    /// Hosts without a proxy, separated by commas (`NO_PROXY`).
    pub except: Option<String>,
    /// Name of the variable.
    pub variable: &'static str,
}

/// A secret, which never appears in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl Environment {
    /// Settings of this process.
    pub fn of_process() -> Result<Environment, HubError> {
        Environment::from(variable)
    }

    /// Settings from the variables that `get` returns. An empty variable counts as unset.
    pub fn from(get: impl Fn(&str) -> Option<OsString>) -> Result<Environment, HubError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &'static str| text(&get, name);
        let endpoint = match text("HF_ENDPOINT")? {
            Some(address) => address.trim_end_matches('/').to_owned(),
            None => ENDPOINT.to_owned(),
        };
        if !is_web_address(&endpoint) {
            let problem = "is not an address of a hub, like https://huggingface.co";
            return Err(HubError::Variable { name: "HF_ENDPOINT", problem });
        }
        let home = hub_home(&get);
        let token = match flag(&get, "HF_HUB_DISABLE_IMPLICIT_TOKEN")? {
            true => None,
            false => token(&get, &text, home.as_ref())?,
        };
        let proxy = ProxySetting::from(get, endpoint.starts_with("https"))?;
        let silence = match text("HF_HUB_DOWNLOAD_TIMEOUT")?.map(|value| value.trim().parse()) {
            None => SILENCE,
            Some(Ok(seconds @ 1..=MAX_SILENCE)) => Duration::from_secs(seconds),
            Some(_) => {
                let problem = "is not a whole number of seconds from 1 to 86400";
                return Err(HubError::Variable { name: "HF_HUB_DOWNLOAD_TIMEOUT", problem });
            }
        };
        Ok(Environment {
            silence,
            endpoint,
            token,
            cache: cache(&get),
            offline: flag(&get, "HF_HUB_OFFLINE")? | flag(&get, "TRANSFORMERS_OFFLINE")?,
            proxy,
        })
    }
}

impl ProxySetting {
    /// The proxy for addresses with or without encryption, from the variables that `get` returns.
    /// An empty variable counts as unset.
    pub fn from(
        get: impl Fn(&str) -> Option<OsString>,
        encrypted: bool,
    ) -> Result<Option<ProxySetting>, HubError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let variables = match encrypted {
            true => ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
            false => ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
        };
        for variable in variables {
            if let Some(address) = text(&get, variable)? {
                let except = match text(&get, "NO_PROXY")? {
                    None => text(&get, "no_proxy")?,
                    except => except,
                };
                return Ok(Some(ProxySetting { address, except, variable }));
            }
        }
        Ok(None)
    }
}

/// True for an address with a host, without a query and without characters that no address has.
fn is_web_address(address: &str) -> bool {
    let host = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    let Some(host) = host else { return false };
    let plain = |c: char| c.is_ascii_graphic() && !"?#@\\\"<>".contains(c);
    !host.is_empty() && host.chars().all(plain)
}

/// A variable of this process. An empty one counts as unset.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Text of a variable.
fn text(
    get: &impl Fn(&str) -> Option<OsString>,
    name: &'static str,
) -> Result<Option<String>, HubError> {
    match get(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(_)) => Err(HubError::Variable { name, problem: "is not UTF-8" }),
    }
}

/// Name of the variable with the directory for shards of models.
pub fn library_variable() -> &'static str {
    first(&["SWS_MODELS", "XDG_DATA_HOME"]).unwrap_or("SWS_MODELS")
}

/// Name of the variable with the hub's cache directory.
pub fn cache_variable() -> &'static str {
    let names = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"];
    first(&names).unwrap_or("HF_HOME")
}

/// Fails if one of these variables names something other than a directory.
pub fn check_places() -> Result<(), HubError> {
    for name in [library_variable(), cache_variable()] {
        let Some(path) = variable(name) else { continue };
        let path = expanded(&variable, path);
        if path.exists() && !path.is_dir() {
            return Err(HubError::Place { variable: name, path });
        }
    }
    Ok(())
}

/// The first of these variables that is set in this process.
fn first(names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| variable(name).is_some())
}

/// The hub's cache, as in [`Environment::cache`], for commands that need no other setting.
pub(crate) fn cache(get: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    match get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE")) {
        Some(typed) => Some(expanded(get, typed)),
        None => Some(hub_home(get)?.join("hub")),
    }
}

/// A path in which `~` was not expanded by a shell, with Python's interpretation.
fn expanded(get: &impl Fn(&str) -> Option<OsString>, path: OsString) -> PathBuf {
    let rest = path.to_str().and_then(|path| path.strip_prefix("~/"));
    match (rest, places::home(get)) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

fn hub_home(get: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(home) = get("HF_HOME") {
        return Some(expanded(get, home));
    }
    Some(places::of_user(get, "XDG_CACHE_HOME", ".cache")?.join("huggingface"))
}

/// True for a variable with the value `1`, `on`, `yes` or `true`, as in Python; false for one that
/// is unset or has the opposite value. Python takes any other value as false, and would use the
/// network in spite of `HF_HUB_OFFLINE=y`.
fn flag(get: &impl Fn(&str) -> Option<OsString>, name: &'static str) -> Result<bool, HubError> {
    let value = get(name).unwrap_or_else(|| "0".into()).to_string_lossy().to_ascii_lowercase();
    match value.trim() {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        _ => {
            let problem = "is neither 1, on, yes or true nor 0, off, no or false";
            Err(HubError::Variable { name, problem })
        }
    }
}

fn token(
    get: &impl Fn(&str) -> Option<OsString>,
    text: &impl Fn(&'static str) -> Result<Option<String>, HubError>,
    home: Option<&PathBuf>,
) -> Result<Option<HubToken>, HubError> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(value) = text(name)? {
            let problem = "holds characters that no token has";
            return HubToken::new(&value).ok_or(HubError::Variable { name, problem });
        }
    }
    let typed = get("HF_TOKEN_PATH");
    let is_typed = typed.is_some();
    let path = match (typed, home) {
        (Some(typed), _) => expanded(get, typed),
        (None, Some(home)) => home.join("token"),
        (None, None) => return Ok(None),
    };
    // If the file was not named explicitly and is missing or unreadable, there is no token. The hub
    // reports if it needs one.
    let file = match open_regular(&path) {
        Ok(file) => file,
        Err(_) if is_typed => {
            let problem = "names a file that cannot be read";
            return Err(HubError::Variable { name: "HF_TOKEN_PATH", problem });
        }
        Err(_) => return Ok(None),
    };
    let mut value = String::new();
    let read = file.take(MAX_TOKEN_FILE).read_to_string(&mut value);
    if read.is_ok()
        && let Some(token) = HubToken::new(&value)
    {
        return Ok(token);
    }
    Err(HubError::TokenFile { path })
}

impl HubToken {
    /// Parses a token. An empty text gives no token, and `None` is for text that cannot be a token.
    #[allow(clippy::option_option, reason = "empty and impossible differ")]
    fn new(text: &str) -> Option<Option<HubToken>> {
        let text = text.trim();
        match text.chars().all(|c| c.is_ascii_graphic()) {
            true if text.is_empty() => Some(None),
            true => Some(Some(HubToken(text.to_owned()))),
            false => None,
        }
    }

    /// The secret, for the header of a request.
    #[cfg(feature = "client")]
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl fmt::Debug for ProxySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxySetting").field("variable", &self.variable).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Environment, HubError> {
        Environment::from(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn variables_mean_what_they_mean_in_python() {
        let cache = |variables: &[(&str, &str)]| with(variables).unwrap().cache;
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache(&[]), None);
        assert_eq!(cache(&[("HOME", "/h")]), path("/h/.cache/huggingface/hub"));
        let xdg = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(cache(&xdg), path("/x/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HOME", "/h")]), path("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "~/f"), ("HOME", "/h")]), path("/h/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), path("/c"));

        let hub = with(&[("HF_ENDPOINT", "http://127.0.0.1:80/"), ("HF_HUB_OFFLINE", "yes")]);
        let hub = hub.unwrap();
        assert_eq!((hub.endpoint.as_str(), hub.offline), ("http://127.0.0.1:80", true));
        assert_eq!(with(&[]).unwrap().endpoint, "https://huggingface.co");
        for (value, offline) in [("0", false), ("", false), ("Off", false), ("TRUE", true)] {
            let set = with(&[("HF_HUB_OFFLINE", value)]).unwrap();
            assert_eq!(set.offline, offline, "{value:?}");
        }
        assert!(with(&[("TRANSFORMERS_OFFLINE", "1")]).unwrap().offline);

        assert_eq!(with(&[]).unwrap().silence, SILENCE);
        let silence = with(&[("HF_HUB_DOWNLOAD_TIMEOUT", "5")]).unwrap().silence;
        assert_eq!(silence, Duration::from_secs(5));

        let token = |value| with(&[("HF_TOKEN", value)]).unwrap().token;
        assert_eq!(token(" hf_x\n").unwrap().0, "hf_x");
        assert_eq!(token("  "), None);
        let off = [("HF_TOKEN", "x"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")];
        assert_eq!(with(&off).unwrap().token, None);

        let proxy = with(&[("http_proxy", "http://p:1"), ("https_proxy", "http://p:2")]);
        assert_eq!(proxy.unwrap().proxy.unwrap().address, "http://p:2");
    }

    #[test]
    fn tokens_come_from_files_and_are_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        std::fs::write(dir.path().join("token"), "hf_home\n").unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "hf_other").unwrap();
        let token = |variables: &[(&str, &str)]| with(variables).unwrap().token.unwrap().0;
        assert_eq!(token(&[("HF_HOME", home)]), "hf_home");
        let path = [("HF_HOME", home), ("HF_TOKEN_PATH", other.to_str().unwrap())];
        assert_eq!(token(&path), "hf_other");
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", "hf_it")]), "hf_it");
        let shown = format!("{:?}", with(&[("HF_TOKEN", "hf_secret")]).unwrap());
        assert!(!shown.contains("hf_secret"), "{shown}");
    }

    #[test]
    fn wrong_variables_are_named_without_their_values() {
        for (name, value) in [
            ("HF_ENDPOINT", "huggingface.co"),
            ("HF_ENDPOINT", "ftp://a"),
            ("HF_ENDPOINT", "https://"),
            ("HF_ENDPOINT", "https://user:secret@a"),
            ("HF_HUB_OFFLINE", "secret"),
            ("TRANSFORMERS_OFFLINE", "y"),
            ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "2"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "secret"),
            ("HF_TOKEN", "two words"),
            ("HF_TOKEN_PATH", "/nonesuch/secret"),
            ("HF_TOKEN", "line\nsecret"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && !error.contains("secret"), "{error}");
        }
    }
}
