"""The fixtures of the product's tests, which these tests share."""

from tests.conftest import real_data as real_data
