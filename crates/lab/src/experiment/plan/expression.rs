//! Figures as people write them down: `D.read.mb_s / link.lane1`.

/// The longest expression, characters.
const LENGTH_MAX: usize = 1000;
/// The most parentheses around each other.
const DEPTH_MAX: usize = 32;

/// A figure made of what was measured.
///
/// ```text
///   sum     = product { ("+" | "-") product }
///   product = term { ("*" | "/") term }
///   term    = number | name | "(" sum ")" | ("min" | "max") "(" sum { "," sum } ")" | "best_other" "(" name ")"
/// ```
///
/// A name is made of letters, digits, `_`, `.` and `-`, and anything in brackets: `A[round-robin].read.mb_s`. So a
/// minus stands between blanks. What a name stands for is asked of the evaluation; which others there are beside
/// one, of the caller that [looks them up](Self::look_up) before.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    text: String,
    root: Node,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Number(f64),
    Name(String),
    Both(Box<Node>, Operator, Box<Node>),
    Least(Vec<Node>),
    Most(Vec<Node>),
    BestOther(String),
}

/// Others beside a name: its column of the other policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Others {
    /// Their names.
    pub names: Vec<String>,
    /// The smallest is the best of them.
    pub less_is_better: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Plus,
    Minus,
    Times,
    Over,
}

/// Reason why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoValue {
    /// Has no value.
    #[error("{0} was not measured")]
    Name(String),
    /// A division by nothing.
    #[error("`{0}` is not a number")]
    NotFinite(String),
}

/// Reason why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an expression: {why}; write for example D.read.mb_s / link.lane1")]
pub struct ExpressionError {
    text: String,
    why: String,
}

impl ExpressionError {
    /// A brace in a sentence that is not closed.
    pub(crate) fn unclosed(text: &str) -> Self {
        Self { text: text.chars().take(80).collect(), why: "its brace is not closed".to_owned() }
    }
}

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    ///
    /// [`ExpressionError`], with what was expected where.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let failed = |why: String| ExpressionError { text: text.chars().take(80).collect(), why };
        if text.len() > LENGTH_MAX {
            return Err(failed(format!("it is longer than {LENGTH_MAX} characters")));
        }
        let tokens = tokens(text).map_err(failed)?;
        let mut parser = Parser { tokens: &tokens, depth: 0 };
        let root = parser.sum().map_err(failed)?;
        match parser.tokens.first() {
            None => Ok(Self { text: text.trim().to_owned(), root }),
            Some(token) => Err(failed(format!("`{token}` where the expression should end"))),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names in it.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.collect(&mut names);
        names
    }

    /// Puts the best of the others in the place of each `best_other(name)`; one that has no others stays, and has no
    /// value.
    pub fn look_up(&mut self, others: &dyn Fn(&str) -> Option<Others>) {
        self.root.look_up(others);
    }

    /// Evaluates the expression, with `value` for each name.
    ///
    /// # Errors
    ///
    /// `NoValue` with the first name that has none.
    pub fn evaluate(&self, value: &dyn Fn(&str) -> Option<f64>) -> Result<f64, NoValue> {
        let result = self.root.evaluate(value)?;
        if result.is_finite() { Ok(result) } else { Err(NoValue::NotFinite(self.text.clone())) }
    }
}

impl Node {
    fn collect<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Number(_) => {}
            Self::Name(name) | Self::BestOther(name) => names.push(name),
            Self::Both(left, _, right) => {
                left.collect(names);
                right.collect(names);
            }
            Self::Least(nodes) | Self::Most(nodes) => nodes.iter().for_each(|node| node.collect(names)),
        }
    }

    fn look_up(&mut self, others: &dyn Fn(&str) -> Option<Others>) {
        match self {
            Self::Number(_) | Self::Name(_) => {}
            Self::Both(left, _, right) => {
                left.look_up(others);
                right.look_up(others);
            }
            Self::Least(nodes) | Self::Most(nodes) => nodes.iter_mut().for_each(|node| node.look_up(others)),
            Self::BestOther(name) => {
                let Some(others) = others(name).filter(|others| !others.names.is_empty()) else { return };
                let nodes = others.names.into_iter().map(Self::Name).collect();
                *self = if others.less_is_better { Self::Least(nodes) } else { Self::Most(nodes) };
            }
        }
    }

    fn evaluate(&self, value: &dyn Fn(&str) -> Option<f64>) -> Result<f64, NoValue> {
        Ok(match self {
            Self::Number(number) => *number,
            Self::Name(name) => value(name).ok_or_else(|| NoValue::Name(name.clone()))?,
            Self::Both(left, operator, right) => {
                let (left, right) = (left.evaluate(value)?, right.evaluate(value)?);
                match operator {
                    Operator::Plus => left + right,
                    Operator::Minus => left - right,
                    Operator::Times => left * right,
                    Operator::Over => left / right,
                }
            }
            Self::Least(nodes) => fold(nodes, value, f64::min)?,
            Self::Most(nodes) => fold(nodes, value, f64::max)?,
            Self::BestOther(name) => {
                return Err(NoValue::Name(format!("another policy than that of {name}")));
            }
        })
    }
}

fn fold(
    nodes: &[Node],
    value: &dyn Fn(&str) -> Option<f64>,
    pick: fn(f64, f64) -> f64,
) -> Result<f64, NoValue> {
    let mut result = f64::NAN;
    for node in nodes {
        // NAN gives way to any number.
        result = pick(result, node.evaluate(value)?);
    }
    Ok(result)
}

/// Cuts a text into numbers, names and signs.
fn tokens(text: &str) -> Result<Vec<&str>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '+' | '-' | '*' | '/' | '(' | ')' | ',' => 1,
            c if c.is_ascii_alphanumeric() || c == '.' || c == '_' => name_len(rest)?,
            c => return Err(format!("`{c}` means nothing in it")),
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    Ok(tokens)
}

/// Returns the length of the name at the start of a text.
fn name_len(text: &str) -> Result<usize, String> {
    let mut in_brackets = false;
    for (at, c) in text.char_indices() {
        match c {
            '[' if !in_brackets => in_brackets = true,
            ']' if in_brackets => in_brackets = false,
            _ if in_brackets || c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') => {}
            _ => return Ok(at),
        }
    }
    if in_brackets { Err("a bracket is not closed".to_owned()) } else { Ok(text.len()) }
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    depth: usize,
}

impl Parser<'_> {
    /// Takes the next token if it is one of these.
    fn take(&mut self, signs: &[(&str, Operator)]) -> Option<Operator> {
        let (sign, operator) =
            signs.iter().find(|(sign, _)| self.tokens.first().is_some_and(|token| token == sign))?;
        debug_assert!(!sign.is_empty());
        self.tokens = &self.tokens[1..];
        Some(*operator)
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        match self.tokens.split_first() {
            Some((&token, rest)) if token == sign => {
                self.tokens = rest;
                Ok(())
            }
            Some((token, _)) => Err(format!("expected `{sign}` instead of `{token}`")),
            None => Err(format!("`{sign}` is missing at its end")),
        }
    }

    fn sum(&mut self) -> Result<Node, String> {
        let mut left = self.product()?;
        while let Some(operator) = self.take(&[("+", Operator::Plus), ("-", Operator::Minus)]) {
            left = Node::Both(Box::new(left), operator, Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Node, String> {
        let mut left = self.term()?;
        while let Some(operator) = self.take(&[("*", Operator::Times), ("/", Operator::Over)]) {
            left = Node::Both(Box::new(left), operator, Box::new(self.term()?));
        }
        Ok(left)
    }

    fn term(&mut self) -> Result<Node, String> {
        let Some((&token, rest)) = self.tokens.split_first() else {
            return Err("it ends where a number or a name is expected".to_owned());
        };
        self.tokens = rest;
        match token {
            "(" => self.nested(|parser| {
                let inner = parser.sum()?;
                parser.expect(")")?;
                Ok(inner)
            }),
            "min" => Ok(Node::Least(self.arguments()?)),
            "max" => Ok(Node::Most(self.arguments()?)),
            "best_other" => match &self.arguments()?[..] {
                [Node::Name(name)] => Ok(Node::BestOther(name.clone())),
                _ => Err("`best_other` takes the name of one figure".to_owned()),
            },
            "+" | "-" | "*" | "/" | ")" | "," => {
                Err(format!("`{token}` where a number or a name is expected"))
            }
            _ => Ok(token.parse().map_or_else(|_| Node::Name(token.to_owned()), Node::Number)),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Node>, String> {
        self.nested(|parser| {
            parser.expect("(")?;
            let mut arguments = vec![parser.sum()?];
            while parser.tokens.first() == Some(&",") {
                parser.tokens = &parser.tokens[1..];
                arguments.push(parser.sum()?);
            }
            parser.expect(")")?;
            Ok(arguments)
        })
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} parentheses are open"));
        }
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

/// Something that is true or not of what was measured: two expressions with `>=`, `<=`, `>` or `<` between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    left: Expression,
    compares: Compares,
    right: Expression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compares {
    AtLeast,
    AtMost,
    Above,
    Below,
}

impl Condition {
    /// Reads a condition.
    ///
    /// # Errors
    ///
    /// [`ExpressionError`], with what was expected where.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let signs = [
            (">=", Compares::AtLeast),
            ("<=", Compares::AtMost),
            (">", Compares::Above),
            ("<", Compares::Below),
        ];
        let found = signs.iter().find_map(|(sign, compares)| Some((text.split_once(sign)?, *compares)));
        let ((left, right), compares) = found.ok_or_else(|| ExpressionError {
            text: text.chars().take(80).collect(),
            why: "a condition compares two figures with >=, <=, > or <".to_owned(),
        })?;
        Ok(Self { left: Expression::parse(left)?, compares, right: Expression::parse(right)? })
    }

    /// The names in it.
    pub fn names(&self) -> Vec<&str> {
        [self.left.names(), self.right.names()].concat()
    }

    /// As [`Expression::look_up`], on both sides.
    pub fn look_up(&mut self, others: &dyn Fn(&str) -> Option<Others>) {
        self.left.look_up(others);
        self.right.look_up(others);
    }

    /// Returns `true` if the condition holds, with `value` for each name.
    ///
    /// # Errors
    ///
    /// `NoValue` with the first name that has none.
    pub fn holds(&self, value: &dyn Fn(&str) -> Option<f64>) -> Result<bool, NoValue> {
        let (left, right) = (self.left.evaluate(value)?, self.right.evaluate(value)?);
        Ok(match self.compares {
            Compares::AtLeast => left >= right,
            Compares::AtMost => left <= right,
            Compares::Above => left > right,
            Compares::Below => left < right,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str) -> Option<f64> {
        match name {
            "D.read.mb_s" => Some(100.0),
            "A[round-robin].read.mb_s" => Some(150.0),
            "W[10 kB, 1500,1ms].mb_s" => Some(5.0),
            "nothing" => Some(0.0),
            _ => None,
        }
    }

    fn evaluate(text: &str) -> f64 {
        Expression::parse(text).unwrap().evaluate(&value).unwrap()
    }

    #[test]
    fn products_come_before_sums_and_equals_from_the_left() {
        assert_eq!(evaluate("1 + 2 * 3"), 7.0);
        assert_eq!(evaluate("10 - 4 - 3"), 3.0);
        assert_eq!(evaluate("16 / 4 / 2"), 2.0);
        assert_eq!(evaluate("(1 + 2) * 3"), 9.0);
        assert_eq!(evaluate("max(1, min(5, 2), 1.5)"), 2.0);
    }

    #[test]
    fn names_have_policies_and_cells_in_brackets() {
        assert_eq!(evaluate("A[round-robin].read.mb_s / D.read.mb_s"), 1.5);
        assert_eq!(evaluate("W[10 kB, 1500,1ms].mb_s*2"), 10.0);
        assert_eq!(Expression::parse("a-b - c").unwrap().names(), ["a-b", "c"]);
    }

    #[test]
    fn what_has_no_value_is_named() {
        let missing = Expression::parse("D.read.mb_s / link.lane1").unwrap().evaluate(&value);
        assert_eq!(missing, Err(NoValue::Name("link.lane1".into())));
        let by_nothing = Expression::parse("1 / nothing").unwrap().evaluate(&value);
        assert!(matches!(by_nothing, Err(NoValue::NotFinite(_))));
    }

    #[test]
    fn what_is_no_expression_is_told() {
        for (text, why) in [
            ("", "it ends where a number"),
            ("1 +", "it ends where a number"),
            ("1 2", "`2` where the expression should end"),
            ("(1", "`)` is missing"),
            ("max(1 2)", "expected `)` instead of `2`"),
            ("* 2", "`*` where"),
            ("a ? b", "`?` means nothing"),
            ("a[b", "a bracket is not closed"),
        ] {
            let sentence = Expression::parse(text).unwrap_err().to_string();
            assert!(sentence.contains(why), "{text}: {sentence}");
        }
        assert!(Expression::parse(&"(".repeat(900)).unwrap_err().to_string().contains("32 parentheses"));
        assert!(Expression::parse(&"1+".repeat(900)).is_err());
    }

    #[test]
    fn the_best_other_is_the_largest_or_the_smallest_of_those_beside_it() {
        let evaluate = |less_is_better| {
            let mut expression = Expression::parse("a / best_other(a)").unwrap();
            assert_eq!(expression.names(), ["a", "a"]);
            let names = vec!["b".to_owned(), "c".to_owned()];
            expression
                .look_up(&|name| (name == "a").then(|| Others { names: names.clone(), less_is_better }));
            assert_eq!(expression.names(), ["a", "b", "c"]);
            expression
                .evaluate(&|name| Some([6.0, 2.0, 3.0][usize::from(name.as_bytes()[0] - b'a')]))
                .unwrap()
        };
        assert_eq!((evaluate(false), evaluate(true)), (2.0, 3.0));
        let alone = Expression::parse("best_other(a)").unwrap().evaluate(&|_| Some(1.0));
        assert!(alone.unwrap_err().to_string().contains("another policy"));
        assert!(
            Expression::parse("best_other(1)").is_err() && Expression::parse("best_other(a, b)").is_err()
        );
    }

    #[test]
    fn conditions_compare() {
        let holds = |text| Condition::parse(text).unwrap().holds(&value).unwrap();
        assert!(holds("D.read.mb_s >= 100") && holds("D.read.mb_s <= 100"));
        assert!(!holds("D.read.mb_s > 100") && !holds("D.read.mb_s < 100"));
        assert!(Condition::parse("D.read.mb_s").is_err());
    }
}
