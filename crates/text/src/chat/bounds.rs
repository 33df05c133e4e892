//! Limits on the output of a template.
//!
//! The template engine counts steps, but one step can make a string of any size: `s ~ s` forty
//! times over is a terabyte. The syntax tree is therefore rewritten. Every operation that makes or
//! compares strings and lists becomes a call of a function that first pays from a [`Budget`] for
//! the size of its operands. Literal text becomes an expression, which pays when it is printed.

use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::machinery::ast::{
    self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt, UnaryOpKind,
};
use minijinja::machinery::{CodeGenerator, Span, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};

/// The remaining budget of a rendering, in bytes: roughly the amount of text that it may still
/// produce.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    /// True once a payment exceeded the remaining budget.
    pub(super) spent: AtomicBool,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { left: AtomicUsize::new(Budget::BYTES), spent: AtomicBool::new(false) }
    }
}

impl Budget {
    /// Budget of a rendering: some fifty times the text of a context of a million tokens.
    pub(super) const BYTES: usize = 256 << 20;

    /// Deducts `bytes`, or fails if less is left.
    pub(super) fn pay(&self, bytes: usize) -> Result<(), Error> {
        let left = self.left.load(Ordering::Relaxed);
        match left.checked_sub(bytes) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            None => {
                self.spent.store(true, Ordering::Relaxed);
                Err(Error::new(ErrorKind::InvalidOperation, "too much text"))
            }
        }
    }

    /// Pays for copying a string, or a list whose elements stay shared.
    pub(super) fn pay_for_copy(&self, value: &Value) -> Result<(), Error> {
        let each = if value.kind() == ValueKind::String { 1 } else { size_of::<Value>() };
        self.pay(
            value.len().unwrap_or(0).max(value.as_str().map_or(0, str::len)).saturating_mul(each),
        )
    }

    /// Pays for a value and everything nested in it: the cost of comparing or printing it.
    pub(super) fn pay_for(&self, value: &Value) -> Result<(), Error> {
        self.pay_nested(value, 0)
    }

    /// Pays for visiting one nested value. Values from JSON never reach the depth limit, because
    /// the parser stops earlier.
    pub(super) fn pay_for_node(&self, depth: usize) -> Result<(), Error> {
        if depth > 200 {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
        }
        self.pay(size_of::<Value>())
    }

    fn pay_nested(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.pay_for_node(depth)?;
        match value.kind() {
            ValueKind::String | ValueKind::Bytes => {
                self.pay(value.as_bytes().map_or(0, <[u8]>::len))
            }
            ValueKind::Seq | ValueKind::Iterable => {
                // The length is paid first: a lazy list may claim to be longer than can be counted.
                self.pay(value.len().unwrap_or(0).saturating_mul(size_of::<Value>()))?;
                for item in value.try_iter()? {
                    self.pay_nested(&item, depth + 1)?;
                }
                Ok(())
            }
            ValueKind::Map => {
                self.pay(value.len().unwrap_or(0).saturating_mul(2 * size_of::<Value>()))?;
                for key in value.try_iter()? {
                    self.pay_nested(&key, depth + 1)?;
                    self.pay_nested(&value.get_item(&key)?, depth + 1)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Text that pays from the budget as it grows.
pub(super) struct BudgetedText<'a> {
    pub(super) text: String,
    pub(super) budget: &'a Budget,
}

impl Write for BudgetedText<'_> {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        self.budget.pay(s.len()).map_err(|_| std::fmt::Error)?;
        self.text.push_str(s);
        Ok(())
    }
}

/// Returns an error if the text is not a valid template.
pub(super) fn check(template: &str) -> Result<(), Error> {
    let template = without_generation_marks(template);
    rebuild(&parse(&template, NAME, syntax()?)?).map(drop)
}

/// Renders a template with the operations of [`OPERATIONS`], which `environment` must have.
pub(super) fn render(
    environment: &Environment<'_>,
    template: &str,
    variables: Value,
) -> Result<String, Error> {
    let template = without_generation_marks(template);
    let tree = rebuild(&parse(&template, NAME, syntax()?)?)?;
    let mut generator = CodeGenerator::new(NAME, &template);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    eval(environment, &instructions, variables, &blocks, &mut output, AutoEscape::None)?;
    drop(output);
    Ok(text)
}

const NAME: &str = "chat_template";

/// The syntax settings of transformers.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// Removes `{% generation %}` tags. transformers adds this tag to mark the text of the assistant,
/// and it prints nothing. The engine has no such tag, so a condition that is always true takes its
/// place, with the same effect on the surrounding whitespace.
fn without_generation_marks(template: &str) -> String {
    let mut rest = template;
    let mut out = String::with_capacity(template.len());
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_matches(['{', '}', '%', '-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The operations that are paid for, under names that no template can spell, with their
/// expressions.
pub(super) const OPERATIONS: [(&str, &str); 16] = [
    ("+", "a + b"),
    ("-", "a - b"),
    ("*", "a * b"),
    ("/", "a / b"),
    ("//", "a // b"),
    ("%", "a % b"),
    ("**", "a ** b"),
    ("==", "a == b"),
    ("!=", "a != b"),
    ("<", "a < b"),
    ("<=", "a <= b"),
    (">", "a > b"),
    (">=", "a >= b"),
    ("in", "a in b"),
    ("not in", "a not in b"),
    ("[:]", "a[b:c:d]"),
];

/// The unmodified engine, which executes operations that have been paid for.
pub(super) static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);

/// Pays for an operation of [`OPERATIONS`] and executes it.
pub(super) fn operate(
    budget: &Budget,
    expression: &str,
    operands: &[Value],
) -> Result<Value, Error> {
    let a = operand(operands, 0);
    let b = operand(operands, 1);
    let c = operand(operands, 2);
    let d = operand(operands, 3);
    match expression {
        "a + b" | "a[b:c:d]" => {
            budget.pay_for_copy(&a)?;
            budget.pay_for_copy(&b)?;
        }
        "a * b" => {
            let times = operands.iter().filter_map(Value::as_usize).max().unwrap_or(0);
            let length = operands.iter().filter_map(Value::len).max().unwrap_or(0);
            budget.pay(length.saturating_mul(times).saturating_mul(size_of::<Value>()))?;
        }
        _ => {
            budget.pay_for(&a)?;
            budget.pay_for(&b)?;
        }
    }
    ENGINE.compile_expression(expression)?.eval(context! { a, b, c, d })
}

fn operand(operands: &[Value], number: usize) -> Value {
    operands.get(number).cloned().unwrap_or(Value::from(()))
}

/// The syntax tree with every paid operation as a call, and literal text as an expression.
fn rebuild<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
    let all = |body: &[Stmt<'a>]| body.iter().map(rebuild).collect::<Result<Vec<_>, _>>();
    Ok(match statement {
        Stmt::Template(s) => Stmt::Template(at(s, ast::Template { children: all(&s.children)? })),
        Stmt::EmitExpr(s) => Stmt::EmitExpr(at(s, ast::EmitExpr { expr: paid(&s.expr) })),
        Stmt::EmitRaw(s) => {
            let expr = Expr::Const(at(s, ast::Const { value: Value::from(s.raw) }));
            Stmt::EmitExpr(at(s, ast::EmitExpr { expr }))
        }
        Stmt::ForLoop(s) => {
            let target = paid(&s.target);
            let iter = paid(&s.iter);
            let body = all(&s.body)?;
            let else_body = all(&s.else_body)?;
            let filter_expr = s.filter_expr.as_ref().map(paid);
            let recursive = s.recursive;
            Stmt::ForLoop(at(
                s,
                ast::ForLoop { target, iter, filter_expr, recursive, body, else_body },
            ))
        }
        Stmt::IfCond(s) => {
            let true_body = all(&s.true_body)?;
            let false_body = all(&s.false_body)?;
            Stmt::IfCond(at(s, ast::IfCond { expr: paid(&s.expr), true_body, false_body }))
        }
        Stmt::WithBlock(s) => {
            let assignments = s.assignments.iter().map(|(to, from)| (paid(to), paid(from)));
            let assignments = assignments.collect();
            Stmt::WithBlock(at(s, ast::WithBlock { assignments, body: all(&s.body)? }))
        }
        Stmt::Set(s) => Stmt::Set(at(s, ast::Set { target: paid(&s.target), expr: paid(&s.expr) })),
        Stmt::SetBlock(s) => {
            let target = paid(&s.target);
            let filter = s.filter.as_ref().map(paid);
            Stmt::SetBlock(at(s, ast::SetBlock { target, filter, body: all(&s.body)? }))
        }
        Stmt::FilterBlock(s) => {
            let filter = paid(&s.filter);
            Stmt::FilterBlock(at(s, ast::FilterBlock { filter, body: all(&s.body)? }))
        }
        Stmt::Macro(s) => Stmt::Macro(at(s, macro_(s, all(&s.body)?))),
        Stmt::CallBlock(s) => {
            let call = at(&s.call, call(&s.call));
            let body = all(&s.macro_decl.body)?;
            let macro_decl = at(&s.macro_decl, macro_(&s.macro_decl, body));
            Stmt::CallBlock(at(s, ast::CallBlock { call, macro_decl }))
        }
        Stmt::Do(s) => Stmt::Do(at(s, ast::Do { call: at(&s.call, call(&s.call)) })),
        Stmt::Continue(s) => Stmt::Continue(at(s, ast::Continue)),
        Stmt::Break(s) => Stmt::Break(at(s, ast::Break)),
        Stmt::AutoEscape(_)
        | Stmt::Block(_)
        | Stmt::Import(_)
        | Stmt::FromImport(_)
        | Stmt::Extends(_)
        | Stmt::Include(_) => {
            let reason = "a chat template is one file: it has no block, include, import or extends";
            return Err(Error::new(ErrorKind::SyntaxError, reason));
        }
    })
}

fn paid<'a>(expression: &Expr<'a>) -> Expr<'a> {
    let span = expression.span();
    match expression {
        Expr::Var(e) => Expr::Var(at(e, ast::Var { id: e.id })),
        Expr::Const(e) => Expr::Const(at(e, ast::Const { value: e.value.clone() })),
        Expr::Slice(e) => {
            let mut operands = vec![paid(&e.expr)];
            for part in [&e.start, &e.stop, &e.step] {
                operands.push(match part {
                    Some(part) => paid(part),
                    None => Expr::Const(Spanned::new(ast::Const { value: Value::from(()) }, span)),
                });
            }
            operation("[:]", operands, span)
        }
        Expr::UnaryOp(e) => {
            let not = matches!(e.op, UnaryOpKind::Not);
            let op = if not { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            Expr::UnaryOp(at(e, ast::UnaryOp { op, expr: paid(&e.expr) }))
        }
        Expr::BinOp(e) => {
            let left = paid(&e.left);
            let right = paid(&e.right);
            let name = match e.op {
                op @ (BinOpKind::ScAnd | BinOpKind::ScOr) => {
                    return Expr::BinOp(at(e, ast::BinOp { op, left, right }));
                }
                BinOpKind::Sub => "-",
                BinOpKind::Div => "/",
                BinOpKind::FloorDiv => "//",
                BinOpKind::Rem => "%",
                BinOpKind::Pow => "**",
                BinOpKind::Add => "+",
                BinOpKind::Mul => "*",
                BinOpKind::Concat => "~",
                BinOpKind::Eq => "==",
                BinOpKind::Ne => "!=",
                BinOpKind::Lt => "<",
                BinOpKind::Lte => "<=",
                BinOpKind::Gt => ">",
                BinOpKind::Gte => ">=",
                BinOpKind::In => "in",
            };
            operation(name, vec![left, right], span)
        }
        Expr::Compare(e) => {
            let operands = e.ops.iter().map(|op| (op.op, paid(&op.expr)));
            let mut operands: Vec<_> = operands.collect();
            if let [(op, _)] = operands[..] {
                let name = match op {
                    CompareOpKind::Eq => "==",
                    CompareOpKind::Ne => "!=",
                    CompareOpKind::Lt => "<",
                    CompareOpKind::Lte => "<=",
                    CompareOpKind::Gt => ">",
                    CompareOpKind::Gte => ">=",
                    CompareOpKind::In => "in",
                    CompareOpKind::NotIn => "not in",
                };
                let right = operands.pop().map(|(_, right)| right);
                let operands = std::iter::once(paid(&e.expr)).chain(right).collect();
                return operation(name, operands, span);
            }
            // `a < b < c` produces no string or list, and would have to be evaluated in parts.
            let ops = operands.into_iter().map(|(op, expr)| ast::CompareOp { op, expr });
            Expr::Compare(at(e, ast::Compare { expr: paid(&e.expr), ops: ops.collect() }))
        }
        Expr::IfExpr(e) => {
            let test_expr = paid(&e.test_expr);
            let true_expr = paid(&e.true_expr);
            let false_expr = e.false_expr.as_ref().map(paid);
            Expr::IfExpr(at(e, ast::IfExpr { test_expr, true_expr, false_expr }))
        }
        Expr::Filter(e) => {
            let expr = e.expr.as_ref().map(paid);
            let args = arguments(&e.args);
            Expr::Filter(at(e, ast::Filter { name: e.name, expr, args }))
        }
        Expr::Test(e) => {
            let expr = paid(&e.expr);
            let args = arguments(&e.args);
            Expr::Test(at(e, ast::Test { name: e.name, expr, args }))
        }
        Expr::GetAttr(e) => {
            Expr::GetAttr(at(e, ast::GetAttr { expr: paid(&e.expr), name: e.name }))
        }
        Expr::GetItem(e) => {
            let expr = paid(&e.expr);
            let subscript_expr = paid(&e.subscript_expr);
            Expr::GetItem(at(e, ast::GetItem { expr, subscript_expr }))
        }
        Expr::Call(e) => Expr::Call(at(e, call(e))),
        Expr::List(e) => Expr::List(at(e, ast::List { items: each(&e.items) })),
        Expr::Tuple(e) => Expr::Tuple(at(e, ast::Tuple { items: each(&e.items) })),
        Expr::Map(e) => Expr::Map(at(e, ast::Map { keys: each(&e.keys), values: each(&e.values) })),
    }
}

/// A call of the function `name` with these operands.
fn operation<'a>(name: &'static str, operands: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let expr = Expr::Var(Spanned::new(ast::Var { id: name }, span));
    let args = operands.into_iter().map(CallArg::Pos).collect();
    Expr::Call(Spanned::new(ast::Call { expr, args }, span))
}

fn call<'a>(call: &ast::Call<'a>) -> ast::Call<'a> {
    ast::Call { expr: paid(&call.expr), args: arguments(&call.args) }
}

fn macro_<'a>(it: &ast::Macro<'a>, body: Vec<Stmt<'a>>) -> ast::Macro<'a> {
    ast::Macro { name: it.name, args: each(&it.args), defaults: each(&it.defaults), body }
}

fn arguments<'a>(arguments: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    arguments.iter().map(argument).collect()
}

fn argument<'a>(argument: &CallArg<'a>) -> CallArg<'a> {
    match argument {
        CallArg::Pos(e) => CallArg::Pos(paid(e)),
        CallArg::Kwarg(name, e) => CallArg::Kwarg(name, paid(e)),
        CallArg::PosSplat(e) => CallArg::PosSplat(paid(e)),
        CallArg::KwargSplat(e) => CallArg::KwargSplat(paid(e)),
    }
}

fn each<'a>(expressions: &[Expr<'a>]) -> Vec<Expr<'a>> {
    expressions.iter().map(paid).collect()
}

/// A new node with the span of another.
fn at<T, U>(place: &Spanned<T>, node: U) -> Spanned<U> {
    Spanned::new(node, place.span())
}
