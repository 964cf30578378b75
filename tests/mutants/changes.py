"""Which changes are tried: those that cosmic-ray knows, less those that no test can or need notice."""

import ast
import random
import re
import tempfile
import warnings
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

PACKAGE = Path(__file__).parents[2] / "entrypoint/slipway"
ENUMERATION = re.compile(r"^class (\w+)\(\w*Enum\):", re.MULTILINE)
EQUAL: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}


@dataclass(frozen=True)
class Change:
    """A change of one of the files, by its name in the table."""

    name: str
    mutation: MutationSpec

    @property
    def line(self) -> int:
        """Where it is, from 1."""
        return int(self.mutation.start_pos[0])


def find_changes(name: str, text: str, most: int | None) -> list[Change]:
    """The changes of a file with this text that are worth a run, or as many of them as `most`; the same each time."""
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session", WorkDB.Mode.create) as session:
        file = Path(folder, "file.py")
        file.write_text(text, encoding="utf-8")
        init([file], session, {})
        mutations = [item.mutations[0] for item in session.work_items]
    mutations.sort(key=lambda mutation: (mutation.start_pos, mutation.operator_name, mutation.occurrence))
    random.Random(name).shuffle(mutations)
    chosen: list[Change] = []
    for mutation in mutations:
        if len(chosen) != most and is_worth_a_run(text, mutated(text, mutation)):
            chosen.append(Change(name, mutation))
    return chosen


def mutated(text: str, mutation: MutationSpec) -> str:
    """The text with a change."""
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    return str(mutate_code(text, operator, mutation.occurrence))


def is_worth_a_run(before: str, after: str) -> bool:
    """Whether a test could and should notice.

    A change of an annotation is the type checker's to notice, and either does nothing (`x: int + None` in a function) or
    ends the import (`int & None` in a signature), which would count as noticed by whatever test. So would what Python
    does not compile (`def f(+, name)`) or warns of (`word is "peer"`). `frozen=True` is there for who writes the code. Of None
    and of an enumeration's member there is one object, so that `is` and `==` mean the same: what comes as text is decoded.
    """
    try:
        with warnings.catch_warnings(action="error"):
            compile(after, "", "exec")
    except (SyntaxError, Warning):
        return False
    return meaning(before) != meaning(after)


@lru_cache(maxsize=2)
def meaning(text: str) -> str:
    """What a text does, apart from annotations, `frozen`, and whether it says `is` or `==` of what there is one of."""
    return ast.dump(_Bare().visit(ast.parse(text)))


@lru_cache
def enumerations() -> frozenset[str]:
    """The names of the package's enumerations."""
    texts = (file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    return frozenset(name for text in texts for name in ENUMERATION.findall(text))


def is_one_of_a_kind(node: ast.expr) -> bool:
    """Whether a name or constant stands for the one object that is equal to it."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id in enumerations()
    return isinstance(node, ast.Constant) and node.value is None


class _Bare(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        sides = [node.left, *node.comparators]
        for at, (left, right) in enumerate(pairwise(sides)):
            if is_one_of_a_kind(left) or is_one_of_a_kind(right):
                node.ops[at] = EQUAL.get(type(node.ops[at]), type(node.ops[at]))()
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(value=None)  # the name stays: it is a field of a dataclass
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg == "frozen":
            node.value = ast.Constant(value=None)
        return self.generic_visit(node)
