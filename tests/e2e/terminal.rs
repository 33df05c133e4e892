//! A terminal: its output, and its state after exit.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use sws_format::Clock;

use crate::goldens::{copy, golden_dir};
use crate::sws::{Outcome, command, sws};

/// The two ends of a terminal without a window.
pub(crate) struct Terminal {
    inside: std::fs::File,
    outside: std::fs::File,
    shown: Receiver<Vec<u8>>,
}

impl Terminal {
    pub(crate) fn open() -> Terminal {
        let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&outside).unwrap();
        unlockpt(&outside).unwrap();
        let name = ptsname(&outside, Vec::new()).unwrap();
        let inside = std::fs::File::options()
            .read(true)
            .write(true)
            .open(Path::new(name.to_str().unwrap()))
            .unwrap();
        let outside = std::fs::File::from(outside);
        let mut reading = outside.try_clone().unwrap();
        let (told, shown) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reading.read(&mut bytes) {
                if n == 0 || told.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { inside, outside, shown }
    }

    /// A terminal with a window of so many columns and lines.
    pub(crate) fn of(ws_col: u16, ws_row: u16) -> Terminal {
        let terminal = Terminal::open();
        let size = Winsize { ws_col, ws_row, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal.inside, size).unwrap();
        terminal
    }

    fn start(&self, command: &mut Command) -> Child {
        let end = || Stdio::from(self.inside.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Like [`start`](Self::start), with messages on the terminal too.
    pub(crate) fn start_with_messages(&self, command: &mut Command) -> Child {
        let end = || Stdio::from(self.inside.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    /// With messages on the terminal, and standard output elsewhere.
    pub(crate) fn start_with_output(&self, command: &mut Command, output: Stdio) -> Child {
        let end = || Stdio::from(self.inside.try_clone().unwrap());
        command.stdin(end()).stdout(output).stderr(end()).spawn().unwrap()
    }

    /// Output up to these words.
    pub(crate) fn until(&self, words: &str) -> String {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(words) {
            let more = self.shown.recv_timeout(Duration::from_secs(60));
            all.extend(
                more.unwrap_or_else(|_| {
                    panic!("no {words:?} in {:?}", String::from_utf8_lossy(&all))
                }),
            );
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    pub(crate) fn modes(&self) -> LocalModes {
        tcgetattr(&self.inside).unwrap().local_modes
    }

    pub(crate) fn type_in(&mut self, bytes: &[u8]) {
        self.outside.write_all(bytes).unwrap();
    }
}

/// The exit status of a child. A child that is still running is killed, and the test fails.
pub(crate) fn ended(mut child: Child) -> ExitStatus {
    for _ in 0..600 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        Clock::real().sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    panic!("the child is still running");
}

pub(crate) fn conversational(dir: &Path) {
    copy("qwen3_moe", dir);
    std::fs::write(dir.join("chat_template.jinja"), "{{ messages[-1].content }}").unwrap();
}

#[test]
fn a_terminal_without_a_cursor_gets_lines_alone() {
    let model = sws_testing::tales();
    let args: [&dyn AsRef<std::ffi::OsStr>; 4] = [&"run", &model, &"-n400", &"--seed=1"];
    for (name, draws) in [("dumb", false), ("xterm", true)] {
        let terminal = Terminal::of(80, 24);
        let child = terminal.start_with_messages(command(&args).env("TERM", name));
        let shown = terminal.until("[seed 1");
        assert_eq!(shown.contains('\u{1b}'), draws, "{name}: {shown:?}");
        assert!(ended(child).success());
    }
}

/// Dim text tells reasoning from an answer; without it, a word does.
#[test]
fn reasoning_is_told_from_an_answer_without_colours() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    // The model never ends its reasoning.
    let template = "{{ messages[-1].content }}<think>{# </think> #}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let args: [&dyn AsRef<std::ffi::OsStr>; 5] =
        [&"chat", &model, &"hello", &"--ignore-eos", &"-n8"];
    for (value, is_dim) in [("", true), ("1", false)] {
        let terminal = Terminal::of(80, 24);
        let child = terminal
            .start_with_messages(command(&args).env("NO_COLOR", value).env("TERM", "xterm"));
        let shown = terminal.until("[seed ");
        assert_eq!(shown.contains("\u{1b}[2m"), is_dim, "{shown:?}");
        assert_eq!(shown.contains("[thinking]"), !is_dim, "{shown:?}");
        assert!(ended(child).success());
    }
}

#[test]
fn a_chat_gives_the_terminal_back_whatever_ends_it() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    conversational(&model);
    for signal in ["TERM", "HUP", "QUIT"] {
        let terminal = Terminal::open();
        let before = terminal.modes();
        let child = terminal.start(&mut command(&[&"chat", &model]));
        terminal.until("> ");
        assert_ne!(terminal.modes(), before, "the editor has its own modes");
        let signal = format!("-{signal}");
        let id = child.id().to_string();
        assert!(Command::new("kill").args([&signal, &id]).status().unwrap().success());
        let status = ended(child);
        assert_eq!(status.code(), None, "{signal} ended it");
        assert_eq!(terminal.modes(), before, "{signal}");
    }
    let mut terminal = Terminal::open();
    let before = terminal.modes();
    let child = terminal.start(&mut command(&[&"chat", &model]));
    terminal.until("> ");
    terminal.type_in(b"/quit\r");
    assert!(ended(child).success());
    assert_eq!(terminal.modes(), before);
}

#[test]
fn invalid_utf8_does_not_end_a_chat() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    conversational(&model);
    let mut terminal = Terminal::open();
    let mut child = terminal.start(&mut command(&[&"chat", &model]));
    terminal.until("> ");
    terminal.type_in(b"\xff\xfe\r");
    // Input is lost while the editor changes modes, so it is repeated until it takes effect.
    for _ in 0..100 {
        terminal.type_in(b"/quit\r");
        Clock::real().sleep(Duration::from_millis(100));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
    }
    child.kill().unwrap();
    panic!("the child is still running");
}

#[test]
fn text_of_a_model_reaches_a_terminal_without_control_characters() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    let path = model.join("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // Appends to every word a sequence that sets the window title, in the letters that stand for
    // its bytes.
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let words: Vec<(String, serde_json::Value)> =
        vocab.iter().map(|(word, id)| (format!("{word}ě]0;Tć"), id.clone())).collect();
    *vocab = words.into_iter().collect();
    std::fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
    let args: [&dyn AsRef<std::ffi::OsStr>; 8] =
        [&"run", &model, &"--tokens", &"1,2,3", &"--max-new-tokens", &"4", &"--temperature", &"0"];
    let piped = sws(&args).succeeded();
    assert!(piped.stdout.contains("\u{1b}]0;T\u{7}"), "a file gets what the model says: {piped:?}");

    let terminal = Terminal::open();
    let child = terminal.start(&mut command(&args));
    let shown = terminal.until("\n");
    assert!(ended(child).success());
    assert!(shown.contains("\\u{1b}]0;T\\u{7}"), "{shown:?}");
    let raw = |c: char| c.is_control() && !"\r\n\t".contains(c);
    assert!(!shown.contains(raw), "{shown:?}");
}

#[test]
fn names_in_messages_are_escaped() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model\u{1b}]0;T\u{7}");
    let hostile = temp.path().join("dtype");
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(&hostile).unwrap();
    let header = r#"{"a":{"dtype":"\u001b]0;T\u0007","shape":[1],"data_offsets":[0,1]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.push(0);
    std::fs::write(hostile.join("model.safetensors"), bytes).unwrap();
    let config = std::fs::read(golden_dir("qwen3_moe").join("config.json")).unwrap();
    std::fs::write(hostile.join("config.json"), config).unwrap();
    let option = std::ffi::OsString::from("--\u{1b}]0;T\u{7}");
    // Clap strips sequences from its messages about options.
    let escaped = "\\u{1b}]0;T\\u{7}";
    let cases: [(&[&dyn AsRef<std::ffi::OsStr>], &str); 4] = [
        (&[&"run", &dir, &"--tokens", &"1"], escaped),
        (&[&"inspect", &hostile], escaped),
        (&[&"verify", &dir], escaped),
        (&[&"run", &option], "unexpected argument"),
    ];
    for (args, words) in cases {
        let outcome = sws(args);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(words), "{outcome:?}");
        let raw = |c: char| c.is_control() && c != '\n';
        assert!(!outcome.stderr.contains(raw), "{outcome:?}");
    }
}

#[test]
fn the_live_line_takes_no_character_of_the_text() {
    let columns = 5;
    let args: [&dyn AsRef<std::ffi::OsStr>; 6] =
        [&"run", &"--seed=7", &"-n", &"200", &"--ram=min", &"--ignore-eos"];
    let plain = sws(&args).succeeded().stdout;
    let mut expected = render(&plain.replace('\n', "\r\n"), columns);
    let len = expected.iter().rposition(|line| !line.is_empty()).unwrap() + 1;
    expected.truncate(len);
    let terminal = Terminal::of(columns as u16, 200);
    let child = terminal.start_with_messages(&mut command(&args));
    let bytes = terminal.until("[200 tokens");
    assert!(ended(child).success());
    let draws = bytes.matches("\x1bD").count();
    assert!(draws > 3, "the line was drawn {draws} times");
    // The name of the model comes first.
    let (_, text) = bytes.split_once("tales-moe`\r\n").unwrap();
    assert_eq!(render(text, columns)[..len], expected);
}

/// The progress of a long prompt, too, leaves its text alone.
#[test]
fn the_progress_of_a_prompt_stands_below_its_text() {
    let prompt = "The wolf was old and its teeth were blunt. ".repeat(18);
    let args: [&dyn AsRef<std::ffi::OsStr>; 9] = [
        &"run",
        &"--seed=7",
        &"-n",
        &"4",
        &"--ram=min",
        &"--ignore-eos",
        &"-t1",
        &"--prompt",
        &prompt,
    ];
    // Little memory, one thread, and the slowest kernels: about a second.
    let slow = |command: &mut Command| {
        command.env("SWS_TIER", "scalar");
    };
    let mut plain = command(&args);
    slow(&mut plain);
    let plain = Outcome::of(plain.output().unwrap()).succeeded().stdout;
    let columns = 100;
    let terminal = Terminal::of(columns as u16, 200);
    let mut command = command(&args);
    slow(&mut command);
    let child = terminal.start_with_messages(&mut command);
    let bytes = terminal.until("[4 tokens");
    assert!(ended(child).success());
    assert!(bytes.contains("prompt ") && bytes.contains(" left\x1b8"), "{bytes:?}");
    let (_, text) = bytes.split_once("tales-moe`\r\n").unwrap();
    let found = render(text, columns);
    let expected = render(&format!("{prompt}{plain}").replace('\n', "\r\n"), columns);
    let len = expected.iter().rposition(|line| !line.is_empty()).unwrap() + 1;
    assert_eq!(found[..len], expected[..len]);
}

/// What a terminal with many lines shows after these bytes: as on the console of Linux, a cursor
/// behind the last column forgets that where it is moved and returned.
fn render(bytes: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![vec![' '; columns]; 500];
    let mut line = 0;
    let mut column = 0;
    let mut is_full = false;
    let mut saved = (0, 0);
    let mut chars = bytes.chars();
    while let Some(c) = chars.next() {
        is_full &= !matches!(c, '\r' | '\n' | '\x1b');
        match c {
            '\r' => column = 0,
            '\n' => line += 1,
            '\x1b' => match chars.next().unwrap() {
                '7' => saved = (line, column),
                '8' => (line, column) = saved,
                'D' => line += 1,
                '[' => match chars.find(char::is_ascii_alphabetic).unwrap() {
                    'A' => line -= 1,
                    'B' => line += 1,
                    'K' => lines[line].fill(' '),
                    // Colours, and a cursor that a bar has hidden.
                    _ => {}
                },
                other => panic!("{other:?}"),
            },
            c => {
                if is_full {
                    (line, column) = (line + 1, 0);
                }
                lines[line][column] = c;
                is_full = column + 1 == columns;
                column += usize::from(!is_full);
            }
        }
    }
    lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
}
