/** A table of rows: columns that sort, rows that can be selected (also all that match the filters), pages, keys j, k and Enter. */
import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { go, query, setQuery } from '../shell/router'
import { t } from '../strings'
import { count } from '../format'
import { Button, Skeleton } from './basic'
import { Icon } from './icons'

export interface Column<R> {
  key: string
  head: ComponentChildren
  cell: (row: R) => ComponentChildren
  /** The name by which the server orders. */
  order?: string
  /** Right-aligned numbers. */
  right?: boolean
  class?: string
}

export interface Selection {
  keys: ReadonlySet<string>
  all: boolean
}
export const NOTHING: Selection = { keys: new Set(), all: false }

interface Props<R> {
  columns: Column<R>[]
  rows: readonly R[] | undefined
  /** The rows could not be loaded, and the page says why: without rows, nothing more is shown. */
  failed?: boolean
  rowKey: (row: R) => string
  rowHref?: (row: R) => string | null
  total?: number | null | undefined
  /** No more rows than that are counted. */
  totalLimit?: number | null | undefined
  /** Entries of this page, if some share a row. */
  entries?: number | undefined
  /** Rows a page has. 0: no pages. */
  size?: number
  order?: string
  selection?: Selection
  onSelect?: (selection: Selection) => void
  /** Whether a row can be selected. */
  selectable?: (row: R) => boolean
  empty: ComponentChildren
  label: string
  skeleton?: number
  class?: string
}

export function List<R>({ columns, rows, failed = false, rowKey, rowHref, total, totalLimit, entries, size = 0, order, selection, onSelect, selectable = () => true, empty, label, skeleton = 8, class: extra = '' }: Props<R>) {
  const [at, show] = useState(-1)
  // Two keys can be pressed before the list is drawn again.
  const now = useRef(-1)
  const setAt = (next: number) => {
    now.current = next
    show(next)
  }
  const body = useRef<HTMLTableSectionElement>(null)
  const offset = Number(query.value.get('offset') ?? 0) || 0
  useEffect(() => setAt(-1), [rows?.length, offset])
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (!rows?.length || !plainKey(event)) return
      if (event.key === 'j' || event.key === 'k') {
        const next = Math.min(rows.length - 1, Math.max(0, now.current + (event.key === 'j' ? 1 : -1)))
        setAt(next)
        body.current?.children[next]?.scrollIntoView({ block: 'nearest' })
      } else if (event.key === 'Enter' && now.current >= 0 && document.activeElement === document.body) {
        const target = rowHref?.(rows[now.current]!)
        if (target) go(target)
      } else if (event.key === 'x' && now.current >= 0 && onSelect && selectable(rows[now.current]!)) {
        toggle(rowKey(rows[now.current]!))
      }
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  }, [rows, selection])

  const toggle = (key: string) => {
    const keys = new Set(selection?.keys)
    if (!keys.delete(key)) keys.add(key)
    onSelect?.({ keys, all: false })
  }
  const pageKeys = rows?.filter(selectable).map(rowKey) ?? []
  const onPage = pageKeys.length > 0 && pageKeys.every((key) => selection?.keys.has(key))

  if (failed && rows === undefined) return null
  return (
    <>
      <div class={`list ${extra}`} role="region" aria-label={label} tabIndex={0}>
        {rows === undefined ? (
          <Skeleton rows={skeleton} />
        ) : rows.length === 0 ? (
          empty
        ) : (
          <table aria-label={label}>
            <thead>
              <tr>
                {onSelect && (
                  <th class="tick">
                    <label><input type="checkbox" aria-label={t.page.rows} checked={onPage} onChange={() => onSelect(onPage ? NOTHING : { keys: new Set(pageKeys), all: false })} /></label>
                  </th>
                )}
                {columns.map((column) => (
                  <th key={column.key} class={`${column.right ? 'r' : ''} ${column.class ?? ''}`} aria-sort={sorting(column.order, order)}>
                    {column.order ? (
                      <button
                        type="button"
                        class="sort"
                        aria-pressed={order?.replace('-', '') === column.order}
                        onClick={() => setQuery({ order_by: order === column.order ? `-${column.order}` : column.order!, offset: null })}
                      >
                        {column.head}
                        {order?.replace('-', '') === column.order && <Icon name={order.startsWith('-') ? 'down' : 'up'} />}
                      </button>
                    ) : (
                      column.head
                    )}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody ref={body}>
              {rows.map((row, index) => {
                const key = rowKey(row)
                const selected = (selection?.all && selectable(row)) || selection?.keys.has(key)
                return (
                  <tr key={key} class={index === at ? 'at' : ''} aria-selected={onSelect ? Boolean(selected) : undefined}>
                    {onSelect && (
                      <td class="tick">
                        <label title={selectable(row) ? undefined : t.rights.lookText}><input type="checkbox" aria-label={t.page.row} checked={Boolean(selected)} disabled={!selectable(row)} onChange={() => toggle(key)} /></label>
                      </td>
                    )}
                    {columns.map((column) => (
                      <td key={column.key} data-key={column.key} data-head={typeof column.head === 'string' ? column.head : undefined} class={`${column.right ? 'r' : ''} ${column.class ?? ''}`}>
                        {column.cell(row)}
                      </td>
                    ))}
                  </tr>
                )
              })}
            </tbody>
          </table>
        )}
      </div>
      {size > 0 && rows !== undefined && (rows.length > 0 || offset > 0) && <Pager offset={offset} size={size} shown={entries ?? rows.length} total={total ?? null} limit={totalLimit ?? null} />}
    </>
  )
}

function sorting(column: string | undefined, order: string | undefined): 'ascending' | 'descending' | undefined {
  if (!column || order?.replace('-', '') !== column) return undefined
  return order.startsWith('-') ? 'descending' : 'ascending'
}

function Pager({ offset, size, shown, total, limit }: { offset: number; size: number; shown: number; total: number | null; limit: number | null }) {
  const isLimit = limit !== null && total === limit
  const last = total === null || isLimit ? shown < size : offset + shown >= total
  return (
    <div class="pager">
      <span class="num">{t.page.of(shown ? offset + 1 : 0, offset + shown, isLimit ? Math.max(total ?? 0, offset + shown) : total, isLimit)}</span>
      {(offset > 0 || !last) && (
        <span class="end">
          <Button icon="left" label={t.page.previous} disabled={offset === 0} onClick={() => setQuery({ offset: offset > size ? String(offset - size) : null }, false)} />
          <Button icon="right" label={t.page.next} disabled={last} onClick={() => setQuery({ offset: String(offset + size) }, false)} />
        </span>
      )}
    </div>
  )
}

/** What to do with the selected rows. */
export function Bulk({ selection, total, onSelect, children }: { selection: Selection; total: number | null | undefined; onSelect: (selection: Selection) => void; children: ComponentChildren }) {
  const chosen = selection.all ? (total ?? 0) : selection.keys.size
  if (!chosen) return null
  return (
    <div class="bulk" role="region" aria-label={t.page.selected(chosen)}>
      <strong class="num">{selection.all ? t.page.allSelected(chosen) : t.page.selected(chosen)}</strong>
      {!selection.all && total !== null && total !== undefined && total > selection.keys.size && (
        <Button kind="plain" onClick={() => onSelect({ keys: selection.keys, all: true })}>
          {t.page.selectAll(total)}
        </Button>
      )}
      <span class="grow" />
      {children}
      <Button kind="plain" icon="close" label={t.page.clear} onClick={() => onSelect(NOTHING)} />
    </div>
  )
}

/** Whether a key is a command and not typed into a field or a dialog. */
export function plainKey(event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false
  const target = event.target as HTMLElement
  return !/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !target.isContentEditable && !document.querySelector('dialog[open]')
}

/** The selection of a page as text, for messages. */
export const chosenCount = (selection: Selection, total: number | null | undefined) => count(selection.all ? (total ?? 0) : selection.keys.size)
