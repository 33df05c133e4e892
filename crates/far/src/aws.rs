//! Settings of S3: credentials, region and endpoint, from the environment and the files of the AWS
//! command line.

use std::ffi::OsString;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use sws_format::open_regular;
use sws_os::places;

use crate::FarError;
use crate::address::{has_good_port, has_host};

/// Maximum size of a settings file.
const MOST_BYTES: u64 = 1 << 20;
/// The region if no setting names one.
const REGION: &str = "us-east-1";

/// Settings of S3. Messages never contain their secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aws {
    /// Credentials. Without any, requests are not signed, which public buckets permit.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) region: String,
    /// The address of a server that is not Amazon's, without a slash at its end.
    pub(crate) endpoint: Option<String>,
}

/// A key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) id: String,
    pub(crate) secret: String,
    /// The token of temporary credentials.
    pub(crate) token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// A settings file, and a section in it.
struct Section {
    path: PathBuf,
    /// Entries of the section; `None` if the file has no such section.
    entries: Option<Vec<(String, String)>>,
}

impl Aws {
    /// Settings from the variables that `get` returns, and from the files that they name. An empty
    /// variable counts as unset.
    pub fn from(get: impl Fn(&str) -> Option<OsString>) -> Result<Aws, FarError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &'static str| match get(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) if is_plain(&value) => Ok(Some(value)),
            Some(_) => Err(FarError::setting(name, "has characters that none has")),
        };
        let home = places::home(get);
        let place = |name: &str, file: &str| match (get(name), &home) {
            (Some(typed), _) => Some(PathBuf::from(typed)),
            (None, Some(home)) => Some(home.join(".aws").join(file)),
            (None, None) => None,
        };
        let profile = text("AWS_PROFILE")?.or(text("AWS_DEFAULT_PROFILE")?);
        let name = profile.as_deref().unwrap_or("default");
        let secrets = match place("AWS_SHARED_CREDENTIALS_FILE", "credentials") {
            Some(path) => Some(section(path, name)?),
            None => None,
        };
        let config = match place("AWS_CONFIG_FILE", "config") {
            Some(path) => Some(profile_section(path, name)?),
            None => None,
        };
        let files = Files { secrets, config };
        if let Some(profile) = &profile
            && files.sections().all(|section| section.entries.is_none())
        {
            return Err(FarError::Setting {
                what: "the variable AWS_PROFILE".to_owned(),
                problem: format!("names `{profile}`, of which no file has a section"),
            });
        }
        let credentials = match (text("AWS_ACCESS_KEY_ID")?, text("AWS_SECRET_ACCESS_KEY")?) {
            (Some(id), Some(secret)) => {
                Some(Credentials { id, secret, token: text("AWS_SESSION_TOKEN")? })
            }
            (Some(_), None) => {
                let problem = "is set without AWS_SECRET_ACCESS_KEY";
                return Err(FarError::setting("AWS_ACCESS_KEY_ID", problem));
            }
            (None, Some(_)) => {
                let problem = "is set without AWS_ACCESS_KEY_ID";
                return Err(FarError::setting("AWS_SECRET_ACCESS_KEY", problem));
            }
            (None, None) => match files.find("aws_access_key_id") {
                None => None,
                Some((section, id)) => {
                    let Some(secret) = section.get("aws_secret_access_key") else {
                        let problem = "has an aws_access_key_id without aws_secret_access_key";
                        return Err(FarError::file(&section.path, problem));
                    };
                    let token = section.get("aws_session_token").map(str::to_owned);
                    Some(Credentials { id: id.to_owned(), secret: secret.to_owned(), token })
                }
            },
        };
        let region = text("AWS_REGION")?.or(text("AWS_DEFAULT_REGION")?);
        let region = region.or_else(|| files.value("region")).unwrap_or_else(|| REGION.to_owned());
        if !is_region(&region) {
            let problem = "has a region that is none; give one like eu-central-1";
            return Err(match files.find("region") {
                Some((section, value)) if value == region => FarError::file(&section.path, problem),
                _ => FarError::setting("AWS_REGION", "is not a region, like eu-central-1"),
            });
        }
        let endpoint = text("AWS_ENDPOINT_URL_S3")?.or(text("AWS_ENDPOINT_URL")?);
        let endpoint = endpoint.or_else(|| files.value("endpoint_url"));
        let endpoint = endpoint.map(|url| url.trim_end_matches('/').to_owned());
        if let Some(url) = &endpoint
            && !is_endpoint(url)
        {
            let problem = "is not an address of a server, like https://storage.example";
            return Err(FarError::setting("AWS_ENDPOINT_URL", problem));
        }
        Ok(Aws { credentials, region, endpoint })
    }
}

/// The section of the profile in each settings file.
struct Files {
    secrets: Option<Section>,
    config: Option<Section>,
}

impl Files {
    fn sections(&self) -> impl Iterator<Item = &Section> {
        self.secrets.iter().chain(&self.config)
    }

    /// The value of an entry, with the section that has it.
    fn find(&self, key: &str) -> Option<(&Section, &str)> {
        self.sections().find_map(|section| Some((section, section.get(key)?)))
    }

    fn value(&self, key: &str) -> Option<String> {
        let (_, value) = self.find(key)?;
        Some(value.to_owned())
    }
}

impl Section {
    fn get(&self, key: &str) -> Option<&str> {
        let found = self.entries.iter().flatten().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads the section of a profile in the configuration. Some tools write the word `profile` before
/// the default one, too.
fn profile_section(path: PathBuf, profile: &str) -> Result<Section, FarError> {
    let long = format!("profile {profile}");
    if profile == "default" {
        let plain = section(path, profile)?;
        return match plain.entries {
            Some(_) => Ok(plain),
            None => section(plain.path, &long),
        };
    }
    section(path, &long)
}

/// Reads a section of a file. A missing file has no sections.
fn section(path: PathBuf, name: &str) -> Result<Section, FarError> {
    let file = match open_regular(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Section { path, entries: None });
        }
        Err(_) => return Err(FarError::file(&path, "cannot be read")),
    };
    let mut text = String::new();
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    if read.is_err() || text.len() as u64 > MOST_BYTES {
        return Err(FarError::file(&path, "is not a settings file"));
    }
    let entries = entries(&text, name)
        .map_err(|()| FarError::file(&path, "has a value with characters that none has"))?;
    Ok(Section { path, entries })
}

/// The entries of a section; `None` if there is no section with this name. Indented lines belong to
/// an entry such as `s3 =`, and are skipped.
#[allow(clippy::type_complexity, reason = "names and values")]
fn entries(text: &str, section: &str) -> Result<Option<Vec<(String, String)>>, ()> {
    let mut found: Option<Vec<(String, String)>> = None;
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let words: Vec<&str> = name.split_whitespace().collect();
            inside = words.join(" ") == section;
            if inside {
                found.get_or_insert_default();
            }
        } else if inside && let Some((key, value)) = line.split_once('=') {
            let value = value.trim();
            if !is_plain(value) {
                return Err(());
            }
            if let Some(found) = &mut found {
                found.push((key.trim().to_ascii_lowercase(), value.to_owned()));
            }
        }
    }
    Ok(found)
}

fn is_plain(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}

fn is_region(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain)
}

fn is_endpoint(url: &str) -> bool {
    let host = ["https://", "http://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let plain = |c: char| c.is_ascii_graphic() && !"?#@\\\"<>".contains(c);
    let authority = host.and_then(|host| host.split('/').next());
    host.is_some_and(|host| host.chars().all(plain))
        && has_host(url)
        && authority.is_some_and(has_good_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Aws, FarError> {
        Aws::from(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn settings_come_from_the_environment_then_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        let credentials = "[default]\naws_access_key_id = IDF\naws_secret_access_key=secretf\n\
                           # a remark\n[two]\naws_access_key_id=IDT\naws_secret_access_key=secrett\n\
                           aws_session_token = tokent\n";
        std::fs::write(dir.path().join(".aws/credentials"), credentials).unwrap();
        let config = "[default]\nregion = eu-west-1\ns3 =\n  region = no\n[profile  two]\n\
                      region=eu-north-1\nendpoint_url = http://127.0.0.1:9/\n";
        std::fs::write(dir.path().join(".aws/config"), config).unwrap();

        assert_eq!(with(&[]).unwrap(), Aws { region: REGION.to_owned(), ..Aws::default() });
        let found = with(&[("HOME", home)]).unwrap();
        let key = |id: &str, secret: &str, token: Option<&str>| {
            let [id, secret] = [id, secret].map(str::to_owned);
            Some(Credentials { id, secret, token: token.map(str::to_owned) })
        };
        assert_eq!(found.credentials, key("IDF", "secretf", None));
        assert_eq!((found.region.as_str(), found.endpoint), ("eu-west-1", None));
        let found = with(&[("HOME", home), ("AWS_PROFILE", "two")]).unwrap();
        assert_eq!(found.credentials, key("IDT", "secrett", Some("tokent")));
        assert_eq!(found.region, "eu-north-1");
        assert_eq!(found.endpoint.as_deref(), Some("http://127.0.0.1:9"));
        assert!(!format!("{found:?}").contains("secret"), "secrets are not shown");
        let typed = [
            ("HOME", home),
            ("AWS_ACCESS_KEY_ID", "ID"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_DEFAULT_REGION", "r-1"),
            ("AWS_ENDPOINT_URL", "https://e/"),
        ];
        let found = with(&typed).unwrap();
        assert_eq!(found.credentials, key("ID", "s", None));
        assert_eq!((found.region.as_str(), found.endpoint.as_deref()), ("r-1", Some("https://e")));
        std::fs::write(dir.path().join(".aws/config"), "[profile default]\nregion=r-2\n").unwrap();
        assert_eq!(with(&[("HOME", home)]).unwrap().region, "r-2");
    }

    #[test]
    fn wrong_settings_are_named_without_their_values() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secrets");
        std::fs::write(&file, "[default]\naws_access_key_id = hidden\n").unwrap();
        let file = file.to_str().unwrap();
        for (variables, word) in [
            (&[("AWS_ACCESS_KEY_ID", "hidden")][..], "AWS_SECRET_ACCESS_KEY"),
            (&[("AWS_SECRET_ACCESS_KEY", "hidden")], "AWS_ACCESS_KEY_ID"),
            (&[("AWS_PROFILE", "nobody")], "nobody"),
            (&[("AWS_REGION", "hidden/../")], "AWS_REGION"),
            (&[("AWS_ENDPOINT_URL", "hidden")], "AWS_ENDPOINT_URL"),
            (&[("AWS_ENDPOINT_URL", "https://me:hidden@e")], "AWS_ENDPOINT_URL"),
            (&[("AWS_ENDPOINT_URL", "http://e:99999")], "AWS_ENDPOINT_URL"),
            (&[("AWS_ENDPOINT_URL", "http://[::1")], "AWS_ENDPOINT_URL"),
            (&[("AWS_SESSION_TOKEN", "x"), ("AWS_ACCESS_KEY_ID", "hidden\n")], "AWS_ACCESS_KEY_ID"),
            (&[("AWS_SHARED_CREDENTIALS_FILE", file)], file),
            (&[("AWS_SHARED_CREDENTIALS_FILE", "/dev")], "/dev"),
        ] {
            let error = with(variables).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("hidden"), "{error}");
        }
    }
}
