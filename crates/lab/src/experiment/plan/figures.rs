//! Headline numbers of an experiment, and what is said of them.

use crate::experiment::plan::expression::{Condition, Expression, ExpressionError, NoValue, Others};

/// A headline number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Identifier for programs.
    pub name: String,
    /// Expression that yields the figure.
    pub value: Expression,
}

/// Verdict on an experiment, given when it is done.
///
/// One sentence of two: `good` if all conditions hold, else `bad`. If a figure in them was not measured, or does not
/// count, neither can be said.
///
/// A verdict of a file with `each = "TEST"` is here once for each policy of that run, with the policy's name wherever
/// the file has `[*]` and `{*}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Index of its `[[verdict]]` table in the file, from 0.
    pub table: usize,
    /// Conditions that must all hold.
    pub when: Vec<Condition>,
    /// Then.
    pub good: Template,
    /// Else.
    pub bad: Template,
}

/// A sentence with figures in braces: `{NAME}`, or `{NAME %}` for one as per cent. Any expression may stand for the
/// name.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Value(Expression),
    Percent(Expression),
}

impl Template {
    /// Reads a sentence.
    ///
    /// # Errors
    ///
    /// [`ExpressionError`] of what stands in braces; a brace that is not closed is one.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            parts.push(Part::Text(before.to_owned()));
            let Some((inside, behind)) = after.split_once('}') else {
                return Err(ExpressionError::unclosed(after));
            };
            parts.push(match inside.trim().strip_suffix('%') {
                Some(inside) => Part::Percent(Expression::parse(inside)?),
                None => Part::Value(Expression::parse(inside)?),
            });
            rest = behind;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self { parts })
    }

    /// The names in it.
    pub fn names(&self) -> Vec<&str> {
        let expressions = self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(expression) | Part::Percent(expression) => Some(expression.names()),
        });
        expressions.flatten().collect()
    }

    /// As [`Expression::look_up`], in every brace.
    pub fn look_up(&mut self, others: &dyn Fn(&str) -> Option<Others>) {
        for part in &mut self.parts {
            match part {
                Part::Text(_) => {}
                Part::Value(expression) | Part::Percent(expression) => expression.look_up(others),
            }
        }
    }

    /// The sentence, with `value` for each name.
    ///
    /// # Errors
    ///
    /// `NoValue` with the first name that has none.
    pub fn fill(&self, value: &dyn Fn(&str) -> Option<f64>) -> Result<String, NoValue> {
        let mut sentence = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => sentence += text,
                Part::Value(expression) => sentence += &said(expression.evaluate(value)?),
                Part::Percent(expression) => {
                    sentence += &format!("{:.1} %", expression.evaluate(value)? * 100.0);
                }
            }
        }
        Ok(sentence)
    }
}

/// A figure in a sentence: three digits or so, and none that mean nothing.
fn said(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_say_figures_with_the_digits_that_count() {
        let value = |name: &str| match name {
            "share" => Some(0.9571),
            "rate" => Some(118.43),
            "stall" => Some(2.0),
            _ => None,
        };
        let template = Template::parse("{rate} MB/s are {share %}, {rate / 10} a tenth, {stall} s.").unwrap();
        assert_eq!(template.fill(&value).unwrap(), "118 MB/s are 95.7 %, 11.8 a tenth, 2 s.");
        assert_eq!(template.names(), ["rate", "share", "rate", "stall"]);
        assert!(Template::parse("{other}").unwrap().fill(&value).is_err());
        assert!(Template::parse("{rate").is_err() && Template::parse("{}").is_err());
    }
}
