//! The environment that templates expect: Python's semantics, and the functions that transformers
//! adds.

use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::bounds::{Budget, BudgetedText, ENGINE, OPERATIONS, operate};
use super::prompt::literal;

/// Filters that copy or compare their input, and produce no more than that.
const FILTERS: [&str; 21] = [
    "batch", "chain", "dictsort", "e", "escape", "groupby", "items", "lines", "list", "lower",
    "max", "min", "reverse", "slice", "sort", "split", "title", "trim", "unique", "upper", "zip",
];

/// An engine whose operations pay from `budget`.
pub(super) fn environment(budget: &Arc<Budget>, now: i64) -> Environment<'static> {
    let mut env = Environment::new();
    add_operations(&mut env, budget);
    add_copying_filters(&mut env, budget);
    add_list_filters(&mut env, budget);
    add_text_filters(&mut env, budget);
    add_json_filter(&mut env, budget);
    env.remove_filter("pprint");
    add_printing(&mut env, budget);
    add_methods(&mut env, budget);
    add_functions(&mut env, budget, now);
    env
}

/// Adds the functions to which operators were rewritten.
fn add_operations(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    for (name, expression) in OPERATIONS {
        let budget = budget.clone();
        env.add_function(name, move |operands: Rest<Value>| {
            operate(&budget, expression, &operands)
        });
    }
}

/// Adds the filters that produce no more than their input.
fn add_copying_filters(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    for name in FILTERS {
        let budget = budget.clone();
        env.add_filter(name, move |args: Rest<ValueOrKwargs>| {
            let args = plain(args);
            for arg in args.iter() {
                budget.pay_for(arg)?;
            }
            let chars = args.first().and_then(Value::as_str).map_or(0, str::len);
            let fill = args.iter().skip(1).filter_map(Value::as_usize).max().unwrap_or(0);
            let items = match name {
                "batch" | "slice" => fill,
                "list" | "split" | "lines" | "reverse" | "sort" | "unique" => chars,
                _ => 0,
            };
            budget.pay(items.saturating_mul(size_of::<Value>()))?;
            ENGINE.empty_state().apply_filter(name, &args)
        });
    }
}

fn add_list_filters(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let paid = budget.clone();
    env.add_filter("map", move |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        paid.pay_for_copy(&value)?;
        filters::map(state, value, args)
    });
    let paid = budget.clone();
    env.add_filter("sum", move |value: Value, args: Rest<ValueOrKwargs>| {
        paid.pay_for(&value)?;
        if value.try_iter()?.any(|item| item.kind() == ValueKind::String) {
            return Err(failed("sum of strings"));
        }
        let args: Vec<Value> = std::iter::once(value).chain(plain(args)).collect();
        ENGINE.empty_state().apply_filter("sum", &args)
    });
    let paid = budget.clone();
    env.add_filter("join", move |items: Value, separator: Option<Value>, kwargs: Kwargs| {
        let separator = match separator {
            Some(separator) => string(&paid, &separator)?,
            None => String::new(),
        };
        let attribute: Option<String> = kwargs.get("attribute")?;
        kwargs.assert_all_used()?;
        join(&paid, &separator, &items, attribute.as_deref())
    });
}

fn add_text_filters(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let paid = budget.clone();
    env.add_filter("indent", move |args: Rest<ValueOrKwargs>| {
        let args = plain(args);
        let lines = args.first().and_then(Value::as_str).map_or(0, |s| s.lines().count() + 1);
        let width = args.iter().skip(1).map(indent_width).max().unwrap_or(0).max(4);
        for arg in &args {
            paid.pay_for(arg)?;
        }
        paid.pay(lines.saturating_mul(width))?;
        ENGINE.empty_state().apply_filter("indent", &args)
    });
    let paid = budget.clone();
    env.add_filter("format", move |args: Rest<ValueOrKwargs>| {
        let args = plain(args);
        pay_for_format(&paid, &args)?;
        ENGINE.empty_state().apply_filter("format", &args)
    });
    let paid = budget.clone();
    env.add_filter("replace", move |text: Value, from: Value, to: Value| {
        let text = string(&paid, &text)?;
        let from = string(&paid, &from)?;
        let to = string(&paid, &to)?;
        let times = text.matches(&from).count();
        paid.pay(text.len().saturating_add(times.saturating_mul(to.len())))?;
        Ok::<_, Error>(text.replace(&from, &to))
    });
    let paid = budget.clone();
    env.add_filter("string", move |value: Value| string(&paid, &value));
    let paid = budget.clone();
    env.add_filter("capitalize", move |value: Value| {
        let text = string(&paid, &value)?;
        paid.pay(3 * text.len())?;
        Ok::<_, Error>(capitalized(&text))
    });
}

fn add_json_filter(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let paid = budget.clone();
    env.add_filter("tojson", move |value: Value, indent: Option<usize>, kwargs: Kwargs| {
        let json = Json {
            indent: match indent {
                Some(indent) => Some(indent),
                None => kwargs.get("indent")?,
            },
            ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        };
        let separators: Option<Vec<String>> = kwargs.get("separators")?;
        kwargs.assert_all_used()?;
        let (comma, colon) = match separators.as_deref() {
            Some([comma, colon]) => (comma.as_str(), colon.as_str()),
            Some(_) => return Err(failed("tojson takes two separators")),
            None if json.indent.is_some() => (",", ": "),
            None => (", ", ": "),
        };
        let mut out = BudgetedText { text: String::new(), budget: &paid };
        json.write(&mut out, &value, comma, colon, 0)?;
        Ok(out.text)
    });
}

/// Adds what writes values as text: between braces, and joined by `~`.
fn add_printing(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let paid = budget.clone();
    env.add_function("~", move |a: Value, b: Value| {
        let mut out = BudgetedText { text: String::new(), budget: &paid };
        print(&mut out, &a)?;
        print(&mut out, &b)?;
        Ok::<_, Error>(out.text)
    });
    let paid = budget.clone();
    env.set_formatter(move |out, _, value| {
        let text = string(&paid, value)?;
        out.write_str(&text).map_err(unwritten)
    });
}

/// Adds the methods of Python's strings, lists and dictionaries.
fn add_methods(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let paid = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        pay_for_method(&paid, value, method, args)?;
        match (value.as_str(), method, args) {
            (Some(text), "capitalize", []) => Ok(Value::from(capitalized(text))),
            (Some(text), "join", [items]) => join(&paid, text, items, None).map(Value::from),
            _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
        }
    });
}

/// Adds the functions of transformers.
fn add_functions(env: &mut Environment<'static>, budget: &Arc<Budget>, now: i64) {
    let paid = budget.clone();
    env.add_function("raise_exception", move |message: Value| {
        let message = string(&paid, &message)?;
        Err::<Value, _>(failed("raised").with_source(Raised(message)))
    });
    env.add_function("strftime_now", move |format: &str| {
        let time = jiff::Timestamp::from_second(now).map_err(no_time)?;
        let time = jiff::tz::TimeZone::UTC.to_datetime(time);
        jiff::fmt::strtime::format(format, time).map_err(no_time)
    });
}

/// Adds the filter that marks literal parts of a prompt.
pub(super) fn add_literal(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let budget = budget.clone();
    env.add_filter("literal", move |value: Value| {
        let text = string(&budget, &value)?;
        // Each character may need an escape.
        budget.pay(text.len().saturating_mul(4).saturating_add(8))?;
        Ok::<_, Error>(literal(&text))
    });
}

/// Converts the arguments to values; named arguments become the last one.
fn plain(args: Rest<ValueOrKwargs>) -> Vec<Value> {
    args.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

/// The argument of `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The message, if the template itself raised this error.
pub(super) fn raised(error: &Error) -> Option<&str> {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        if let Some(Raised(message)) = source.downcast_ref() {
            return Some(message);
        }
        error = source;
    }
    None
}

fn failed(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

fn unwritten(_: fmt::Error) -> Error {
    failed("too much text")
}

fn no_time(cause: jiff::Error) -> Error {
    failed(&cause.to_string())
}

/// Width of an indentation: a number, or the length of a text.
fn indent_width(arg: &Value) -> usize {
    arg.as_usize().unwrap_or(0).max(arg.as_str().map_or(0, str::len))
}

/// Pays for a method call, whose result may be larger than its input.
fn pay_for_method(
    budget: &Budget,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<(), Error> {
    let Some(text) = value.as_str() else {
        return if method == "count" { budget.pay_for(value) } else { Ok(()) };
    };
    budget.pay(text.len())?;
    match method {
        "replace" => {
            let from = args.first().and_then(Value::as_str).unwrap_or_default();
            let to = args.get(1).and_then(Value::as_str).unwrap_or_default();
            budget.pay(text.matches(from).count().saturating_mul(to.len()))
        }
        "split" => {
            let pieces = match args.first().and_then(Value::as_str) {
                Some(separator) => text.matches(separator).count(),
                None => text.split_whitespace().count(),
            };
            budget.pay(pieces.saturating_mul(size_of::<Value>()))
        }
        "splitlines" => budget.pay(text.lines().count().saturating_mul(size_of::<Value>())),
        "format" => {
            let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
            pay_for_format(budget, &all)
        }
        _ => Ok(()),
    }
}

/// Pays for a format string. Field widths are the only part that can produce more text than the
/// arguments have.
fn pay_for_format(budget: &Budget, args: &[Value]) -> Result<(), Error> {
    let format = args.first().and_then(Value::as_str).unwrap_or_default();
    let mut digits = format.split(|c: char| !c.is_ascii_digit());
    if format.contains('*') || digits.any(|digits| digits.len() > 3) {
        return Err(failed("a width in a format is too large"));
    }
    let fields = format.matches(['%', '{']).count();
    budget.pay(fields.saturating_mul(1000))?;
    // Each field may print any argument.
    for arg in args {
        for _ in 0..fields.max(1) {
            budget.pay_for(arg)?;
        }
    }
    Ok(())
}

fn join(
    budget: &Budget,
    separator: &str,
    items: &Value,
    attribute: Option<&str>,
) -> Result<String, Error> {
    let mut out = BudgetedText { text: String::new(), budget };
    for (i, item) in items.try_iter()?.enumerate() {
        if i > 0 {
            out.write_str(separator).map_err(unwritten)?;
        }
        match attribute {
            Some(attribute) => print(&mut out, &item.get_attr(attribute)?)?,
            None => print(&mut out, &item)?,
        }
    }
    Ok(out.text)
}

/// Python's `capitalize`, which puts the first letter into title case. If that becomes several
/// letters, only the first of them is a capital.
fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let mut first = chars.next().into_iter().flat_map(char::to_uppercase);
    let capital = first.next().into_iter();
    let capital: String = capital.chain(first.flat_map(char::to_lowercase)).collect();
    capital + &chars.as_str().to_lowercase()
}

/// Python's `str`.
fn string(budget: &Budget, value: &Value) -> Result<String, Error> {
    let mut out = BudgetedText { text: String::new(), budget };
    print(&mut out, value)?;
    Ok(out.text)
}

fn print(out: &mut BudgetedText<'_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(unwritten),
        None if value.is_undefined() => Ok(()),
        None => repr(out, value, 0),
    }
}

/// Python's `repr`.
fn repr(out: &mut BudgetedText<'_>, value: &Value, depth: usize) -> Result<(), Error> {
    out.budget.pay_for_node(depth)?;
    match value.kind() {
        ValueKind::String => quoted(out, value.as_str().unwrap_or_default()).map_err(unwritten),
        ValueKind::None => out.write_str("None").map_err(unwritten),
        ValueKind::Bool => {
            out.write_str(if value.is_true() { "True" } else { "False" }).map_err(unwritten)
        }
        ValueKind::Number => number(out, value),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
            out.write_str(open).map_err(unwritten)?;
            for (i, item) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" }).map_err(unwritten)?;
                repr(out, &item, depth + 1)?;
            }
            let one = value.is_tuple() && value.len() == Some(1);
            out.write_str(if one { ",)" } else { close }).map_err(unwritten)
        }
        ValueKind::Map => {
            out.write_str("{").map_err(unwritten)?;
            for (i, key) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" }).map_err(unwritten)?;
                repr(out, &key, depth + 1)?;
                out.write_str(": ").map_err(unwritten)?;
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.write_str("}").map_err(unwritten)
        }
        _ => write!(out, "{value}").map_err(unwritten),
    }
}

fn quoted(out: &mut BudgetedText<'_>, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if (c as u32) < 32 || c as u32 == 127 => write!(out, "\\x{:02x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

/// A number as Python prints it: whole floats with `.0`, large and small ones as `1e+20`.
fn number(out: &mut BudgetedText<'_>, value: &Value) -> Result<(), Error> {
    let float = if value.is_integer() { None } else { f64::try_from(value.clone()).ok() };
    let Some(x) = float else { return write!(out, "{value}").map_err(unwritten) };
    let exponent = if x == 0.0 { 0.0 } else { x.abs().log10().floor() };
    let written = if !x.is_finite() {
        write!(
            out,
            "{}",
            if x.is_nan() {
                "nan"
            } else if x > 0.0 {
                "inf"
            } else {
                "-inf"
            }
        )
    } else if (-4.0..16.0).contains(&exponent) {
        write!(out, "{x:?}")
    } else {
        let digits = format!("{x:e}");
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        write!(out, "{mantissa}e{sign}{exponent:0>2}")
    };
    written.map_err(unwritten)
}

/// Python's `json.dumps`, which puts spaces after commas and colons.
struct Json {
    indent: Option<usize>,
    ascii: bool,
    sort_keys: bool,
}

impl Json {
    fn write(
        &self,
        out: &mut BudgetedText<'_>,
        value: &Value,
        comma: &str,
        colon: &str,
        depth: usize,
    ) -> Result<(), Error> {
        out.budget.pay_for_node(depth)?;
        match value.kind() {
            ValueKind::String => {
                self.quoted(out, value.as_str().unwrap_or_default()).map_err(unwritten)
            }
            ValueKind::None => out.write_str("null").map_err(unwritten),
            ValueKind::Bool => write!(out, "{}", value.is_true()).map_err(unwritten),
            ValueKind::Number => number(out, value),
            ValueKind::Seq | ValueKind::Iterable => {
                out.write_str("[").map_err(unwritten)?;
                let mut empty = true;
                for item in value.try_iter()? {
                    self.separate(out, empty, comma, depth + 1)?;
                    self.write(out, &item, comma, colon, depth + 1)?;
                    empty = false;
                }
                self.close(out, empty, "]", depth)
            }
            ValueKind::Map => {
                out.write_str("{").map_err(unwritten)?;
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                for (i, key) in keys.iter().enumerate() {
                    self.separate(out, i == 0, comma, depth + 1)?;
                    match key.as_str() {
                        Some(key) => self.quoted(out, key).map_err(unwritten)?,
                        None => {
                            let mut text = BudgetedText { text: String::new(), budget: out.budget };
                            self.write(&mut text, key, comma, colon, depth + 1)?;
                            self.quoted(out, &text.text).map_err(unwritten)?;
                        }
                    }
                    out.write_str(colon).map_err(unwritten)?;
                    self.write(out, &value.get_item(key)?, comma, colon, depth + 1)?;
                }
                self.close(out, keys.is_empty(), "}", depth)
            }
            kind => Err(failed(&format!("a value of type {kind} is not JSON"))),
        }
    }

    fn separate(
        &self,
        out: &mut BudgetedText<'_>,
        first: bool,
        comma: &str,
        depth: usize,
    ) -> Result<(), Error> {
        out.write_str(if first { "" } else { comma }).map_err(unwritten)?;
        self.line(out, depth)
    }

    fn close(
        &self,
        out: &mut BudgetedText<'_>,
        empty: bool,
        bracket: &str,
        depth: usize,
    ) -> Result<(), Error> {
        if !empty {
            self.line(out, depth)?;
        }
        out.write_str(bracket).map_err(unwritten)
    }

    fn line(&self, out: &mut BudgetedText<'_>, depth: usize) -> Result<(), Error> {
        let Some(indent) = self.indent else { return Ok(()) };
        let width = indent.saturating_mul(depth);
        out.write_str("\n").map_err(unwritten)?;
        out.budget.pay(width)?;
        out.text.extend(std::iter::repeat_n(' ', width));
        Ok(())
    }

    fn quoted(&self, out: &mut BudgetedText<'_>, text: &str) -> fmt::Result {
        out.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                '\n' => out.write_str("\\n")?,
                '\r' => out.write_str("\\r")?,
                '\t' => out.write_str("\\t")?,
                '\u{8}' => out.write_str("\\b")?,
                '\u{c}' => out.write_str("\\f")?,
                c if (c as u32) < 32 || self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}")?;
                    }
                }
                c => out.write_char(c)?,
            }
        }
        out.write_char('"')
    }
}
