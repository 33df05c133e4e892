//! Converts grammars in llama.cpp's notation (GBNF) to Lark's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use super::bounds::quoted;

/// A word of a grammar.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    Name(String),
    /// `::=`
    Is,
    /// A word that is spelled the same in Lark's notation.
    Lark(String),
}

/// Converts a grammar, whose first rule is `root`.
pub(crate) fn lark(grammar: &str) -> Result<String, String> {
    let words = words(grammar)?;
    let mut rules: Vec<(&str, &[Word])> = Vec::new();
    let starts: Vec<usize> = (1..words.len()).filter(|&at| words[at] == Word::Is).collect();
    for (number, &at) in starts.iter().enumerate() {
        let Word::Name(name) = &words[at - 1] else {
            return Err("`::=` stands behind something other than a name".to_owned());
        };
        let end = starts.get(number + 1).map_or(words.len(), |next| next - 1);
        rules.push((name, words.get(at + 1..end).unwrap_or_default()));
    }
    if starts.first() != Some(&1) {
        return Err("it does not begin with a rule".to_owned());
    }
    let mut names = BTreeMap::new();
    for (number, (name, _)) in rules.iter().enumerate() {
        let rule = if *name == "root" { "start".to_owned() } else { format!("rule_{number}") };
        if names.insert(*name, rule).is_some() {
            return Err(format!("it has the rule `{}` twice", shortened(name)));
        }
    }
    if !names.contains_key("root") {
        return Err("it has no rule `root`".to_owned());
    }
    let mut out = String::new();
    for (name, body) in rules {
        let _ = write!(out, "{}:", names[name]);
        for word in body {
            let word = match word {
                Word::Name(name) => names
                    .get(name.as_str())
                    .ok_or_else(|| format!("it has no rule `{}`", shortened(name)))?,
                Word::Lark(word) => word,
                Word::Is => return Err("`::=` stands where a rule goes on".to_owned()),
            };
            let _ = write!(out, " {word}");
        }
        out.push('\n');
    }
    Ok(out)
}

fn shortened(name: &str) -> String {
    name.chars().take(40).collect()
}

fn words(grammar: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut chars = grammar.chars().peekable();
    while let Some(c) = chars.next() {
        let word = match c {
            c if c.is_whitespace() => continue,
            '#' => {
                while chars.next_if(|&c| c != '\n').is_some() {}
                continue;
            }
            ':' if chars.next() == Some(':') && chars.next() == Some('=') => Word::Is,
            '(' | ')' | '|' | '*' | '+' | '?' => Word::Lark(c.to_string()),
            '.' => Word::Lark("/(?s:.)/".to_owned()),
            '"' => Word::Lark(literal(&mut chars)?),
            '[' => Word::Lark(class(&mut chars)?),
            '{' => {
                let times: String = chars.by_ref().take_while(|&c| c != '}').collect();
                let fits = match times.split_once(',') {
                    Some((least, most)) => {
                        is_count(least) && (most.trim().is_empty() || is_count(most))
                    }
                    None => is_count(&times),
                };
                if !fits {
                    return Err("a number of repetitions is not one below 65536".to_owned());
                }
                Word::Lark(format!("{{{}}}", times.replace(' ', "")))
            }
            c if is_name(&c) => {
                let mut name = String::from(c);
                while let Some(c) = chars.next_if(is_name) {
                    name.push(c);
                }
                Word::Name(name)
            }
            c => return Err(format!("it has `{c}`, which is not supported")),
        };
        words.push(word);
    }
    Ok(words)
}

/// The text up to a quote.
fn literal(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Ok(quoted(&text)),
            '\\' => text.push(escaped(chars)?),
            c => text.push(c),
        }
    }
    Err("a text has no end".to_owned())
}

/// True for a number of repetitions.
fn is_count(text: &str) -> bool {
    text.trim().parse::<u16>().is_ok()
}

fn is_name(c: &char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// The characters up to a bracket.
fn class(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut class = String::from("/[");
    if chars.next_if_eq(&'^').is_some() {
        class.push('^');
    }
    let mut is_empty = true;
    while let Some(first) = class_member(chars)? {
        let _ = write!(class, "\\x{{{:X}}}", u32::from(first));
        is_empty = false;
        // A dash at the end of a class is literal.
        let mut ahead = chars.clone();
        if ahead.next() == Some('-') && ahead.peek().is_some_and(|&c| c != ']') {
            chars.next();
            let last = match class_member(chars)? {
                Some(last) if last >= first => last,
                _ => return Err("a range of characters has no end".to_owned()),
            };
            let _ = write!(class, "-\\x{{{:X}}}", u32::from(last));
        }
    }
    match is_empty {
        true => Err("a list of characters is empty".to_owned()),
        false => Ok(class + "]/"),
    }
}

/// The next character of a class; `None` at the bracket.
fn class_member(chars: &mut Peekable<Chars<'_>>) -> Result<Option<char>, String> {
    match chars.next() {
        Some('\\') => escaped(chars).map(Some),
        Some(']') => Ok(None),
        Some(c) => Ok(Some(c)),
        None => Err("a list of characters has no end".to_owned()),
    }
}

/// The character that an escape stands for.
fn escaped(chars: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    let digits = match chars.next() {
        Some('n') => return Ok('\n'),
        Some('r') => return Ok('\r'),
        Some('t') => return Ok('\t'),
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        Some(c) if c.is_ascii_punctuation() => return Ok(c),
        _ => return Err("an escape is unknown".to_owned()),
    };
    let digits: String = chars.by_ref().take(digits).collect();
    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
    code.ok_or_else(|| "an escape stands for no character".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_are_rewritten() {
        let grammar = "# a move\nroot ::= number \". \" (castle | [KQ]? [a-h1-8]{2,3})+ # and more\n\
                       number ::= [1-9] [0-9]*\ncastle ::=\n  \"O-O\" |\n  \"\\x41\\n\" [^\\]/-]";
        let found = lark(grammar).unwrap();
        assert_eq!(
            found,
            "start: rule_1 \". \" ( rule_2 | /[\\x{4B}\\x{51}]/ ? /[\\x{61}-\\x{68}\\x{31}-\\x{38}]/ {2,3} ) +\n\
             rule_1: /[\\x{31}-\\x{39}]/ /[\\x{30}-\\x{39}]/ *\n\
             rule_2: \"O-O\" | \"A\\n\" /[^\\x{5D}\\x{2F}\\x{2D}]/\n"
        );
    }

    #[test]
    fn broken_grammars_are_refused() {
        for grammar in [
            "::= \"a\"",
            "root \"a\"",
            "\"a\" root ::= \"a\"",
            "other ::= \"a\"",
            "root ::= other",
            "root ::= \"a\" root ::= \"b\"",
            "root ::= \"a",
            "root ::= [",
            "root ::= []",
            "root ::= [b-a]",
            "root ::= \"\\q\"",
            "root ::= \"\\uD800\"",
            "root ::= \"a\"{70000}",
            "root ::= \"a\"{",
            "root ::= <token>",
            "root :: = \"a\"",
        ] {
            assert!(lark(grammar).is_err(), "{grammar}");
        }
    }
}
