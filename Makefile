# What a change must pass. CI runs .ci/run, which does all of this in empty environments.
.PHONY: check lint types layers quick test docs

check: lint types layers quick

lint:
	ruff check .
	ruff format --check .

types:
	mypy

layers:
	lint-imports

# Laws and units of the core: a minute or two.
quick:
	pytest -q -n 2 --dist loadfile -m "not slow and not long and not browser" tests/laws tests/unit/test_architecture.py \
	  tests/unit/physics/model tests/unit/physics/hardware tests/unit/physics/graph tests/unit/physics/engine tests/unit/physics/cost

test:
	pytest -q -n 2 --dist loadfile

# The site: pip install -e '.[docs]' first.
docs:
	mkdocs build --strict
