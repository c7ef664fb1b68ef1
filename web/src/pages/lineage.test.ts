import { expect, test } from 'vitest'
import { lineage, usualGap } from './lineage'

const use = (dag_id: string) => ({ dag_id, created_at: '', updated_at: '' })
const asset = (id: number, producers: string[], consumers: string[]) => ({ id, uri: `s3://${id}`, name: `n${id}`, producing_tasks: producers.map((one) => ({ ...use(one), task_id: 't' })), scheduled_dags: consumers.map(use) })

test('the lineage has all that leads to an asset and all that it leads to, and nothing beside', () => {
  const found = lineage([asset(1, ['load'], ['clean']), asset(2, ['clean'], ['report']), asset(3, ['load'], ['other']), asset(4, ['x'], ['y'])], 2)

  expect(found.boxes.map((box) => box.label).sort()).toEqual(['clean', 'load', 'n1', 'n2', 'report'])
  expect(found.edges).toEqual([['d:load', 'a:1'], ['a:1', 'd:clean'], ['d:clean', 'a:2'], ['a:2', 'd:report']])
})

test('a circle of assets ends', () => expect(lineage([asset(1, ['a'], ['b']), asset(2, ['b'], ['a'])], 1).boxes).toHaveLength(4))

test('the usual gap is the median, once there are two', () => {
  expect(usualGap(['2026-01-01T00:00:00Z', '2026-01-01T01:00:00Z'])).toBeNull()
  expect(usualGap(['2026-01-01T05:00:00Z', '2026-01-01T00:00:00Z', '2026-01-01T01:00:00Z', '2026-01-01T02:00:00Z'])).toBe(3600)
})
