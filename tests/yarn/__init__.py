"""Applications on YARN: submitted as docs/yarn.md says, killed, compared.

`make test-yarn` runs these tests alone; elsewhere they are deselected, because HDFS and YARN take minutes and
gigabytes. `support.hadoop_cluster` starts them with one node, `support.yarn_submission` submits. An environment with
the package is made of the installed one, and packed by the command of the page. The broker, of
`support.password_topics`, is in the process of the tests.

The job `yarn_job` appends each batch with its number to HDFS. So the rows show which batches were written twice, and a
test compares them with the batches that were in flight when it killed something. A new failure is a test in
`test_yarn_applications`; the command that it submits is a block of the page.
"""
