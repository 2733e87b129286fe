"""The contract of stores on a real S3 server; what else is S3's own: test_volumes_s3.py."""

import pytest
from store_contract import StoreContract

pytestmark = pytest.mark.s3


class TestS3(StoreContract):
    @pytest.fixture
    def bucket(self, s3_bucket):
        return s3_bucket

    @pytest.fixture
    def faulty(self, faulty_s3):
        return faulty_s3

    @pytest.fixture
    def troubles(self):
        return {}  # SeaweedFS makes a bucket that is written to

    test_a_volume_by_the_command_line = None  # the same code as for the others, only slower
    test_a_bucket_that_is_not_there = None  # see `troubles`
